# The batch step of one run, under Slurm or (first argument --local) without it. Plain bash on the
# host: only `node` and `drive` of coevo.launcher run in the container or virtual environment.
#
# The driver's exit code decides: 0 done · 2 bad input and 70 bug, both final · 75 stopped on request
# or by infrastructure, requeued · anything else died without saying (Ray's C++ ends so when its head
# is lost), requeued. max_restarts in a row without a new journal entry end it.
local_run=; [ "${1:-}" = --local ] && local_run=1
if [ -n "$local_run" ]; then
  run=${runs[${2:-0}]}
  job=$$ handle=local-$$ nodes=1 attempt=0 name=local-$$
  while [ -e "$run/logs/$name.$attempt" ]; do attempt=$((attempt + 1)); done
else
  run=${runs[${SLURM_ARRAY_TASK_ID:-0}]}
  job=$SLURM_JOB_ID name=$SLURM_JOB_ID attempt=${SLURM_RESTART_COUNT:-0} handle=$SLURM_JOB_ID
  # The bare id of an array's last task means the whole array.
  [ -n "${SLURM_ARRAY_JOB_ID:-}" ] && handle=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
fi
logs=$run/logs/$name.$attempt
mkdir -p "$logs" || { echo "job: $logs cannot be made"; exit 2; }
ln -sfn "$name.$attempt" "$run/logs/.latest.$$" && mv -fT "$run/logs/.latest.$$" "$run/logs/latest"
say() { printf '[%(%F %T)T] job %s: %s\n' -1 "$handle" "$*" | tee -a "$logs/job.log"; }
progress() { cat "$run/journal.jsonl" 2>/dev/null | wc -l; }
began=$(progress)
event() { # KIND KEY VALUE...: a line of attempts.jsonl; values hold no quotes
  local line; printf -v line '{"schema":1,"event":"%s","job":"%s","attempt":%d,"time":%(%s)T,"progress":%d' "$1" "$handle" "$attempt" -1 "$(progress)"
  shift; while [ $# -gt 1 ]; do line+=",\"$1\":\"$2\""; shift 2; done
  echo "$line}" >> "$run/attempts.jsonl"
}
leave() { # CODE DECISION
  event end code "$1" stopped "${stopped:-no}" decision "$2"
  exit "$1"
}

# --- where: nodes, and how a step is started ---
if [ -n "$local_run" ]; then
  everywhere() { "$@"; }
  on_nodes() { shift; exec "$@" > "$logs/ray-local.log" 2>&1; }
else
  export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
  mapfile -t names < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  nodes=${#names[@]} head=${names[0]}
  # --overlap: steps share what the batch step holds. --mem=0: a step takes no share of the memory.
  step=(srun --overlap --mem=0 --kill-on-bad-exit=1)
  everywhere() { "${step[@]}" -N"$nodes" -n"$nodes" "$@"; }
  on_nodes() { # head|workers COMMAND...
    local where=(-N1 -n1 -w "$head"); [ "$1" = workers ] && where=(-N$((nodes - 1)) -n$((nodes - 1)) -x "$head")
    shift; exec "${step[@]}" "${where[@]}" -o "$logs/ray-%N.log" "${step_container[@]}" "$@" 2>> "$logs/srun.log"
  }
fi
scratch=$scratch_base/r$job.$attempt
# Compiled kernels outlive the attempt: to make them anew costs each start half a minute and more.
cache=$scratch_base/coevo-cache.$UID
step_container=() inside=()
case $container in
  apptainer:*)
    inside=(apptainer exec)
    [ "$gpus" -gt 0 ] && inside+=(--nv)
    for path in "$run" "$scratch" "$cache" "$PWD" "${mounts[@]}"; do inside+=(--bind "$path:$path"); done
    inside+=("${container#*:}") ;;
  pyxis:*)
    list=; for path in "$run" "$scratch" "$cache" "$PWD" "${mounts[@]}"; do list+=,$path:$path; done
    step_container=("--container-image=${container#*:}" "--container-name=coevo$job"
      "--container-mounts=${list#,}" "--container-workdir=$PWD") ;;
esac
# Stop: a file, which the run looks for before each phase; a signal could hit it before it listens.
rm -f "$run/STOP"
stopped=
stop() {
  [ -n "$stopped" ] || say "$1: asking the run to stop before its next phase"
  stopped=${stopped:-${1%%[ ,]*}}
  : > "$run/STOP"
}
# TERM comes at preemption, at the time limit, at scancel and when a node is lost. At the limit seconds
# are left: what is on disk has to do. After scancel nothing is started again; after the loss of a node
# Slurm requeues by itself.
over='' ended=''
term() {
  local state; state=$([ -n "$local_run" ] || squeue -h -j "$handle" -o '%T %r')
  case $state in
    *TimeLimit*) over=1 ;;
    COMPLETING* | CANCELLED*) ended=1 ;;
  esac
  stop "TERM${over:+ at the time limit}${ended:+ as Slurm ends the job}"
}
trap 'stop USR1' USR1; trap term TERM; trap 'stop INT' INT
say "attempt $attempt on ${SLURM_JOB_NODELIST:-this machine}, run $run, $began phases done"
event start nodes "${SLURM_JOB_NODELIST:-local}"

# --- environment ---
software
unset ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ZE_AFFINITY_MASK GPU_DEVICE_ORDINAL RAY_ADDRESS
ulimit -Sn "$(ulimit -Hn)"
# What a killed attempt left behind goes; -O: nobody else laid the directories out before us.
if ! everywhere bash -c 'for old in "$1".*; do [ "$old" = "$2" ] || rm -rf "$old"; done; shift
    for made; do mkdir -p -m 700 "$made" && [ -O "$made" ] && touch "$made/.writable" || exit 1; done' \
    _ "$scratch_base/r$job" "$scratch" "$cache"; then
  say "cluster.scratch $scratch_base cannot be written on every node; name a directory that can"
  leave 2 "bad input"
fi
export TMPDIR=$scratch TRITON_CACHE_DIR=$cache/triton VLLM_CACHE_ROOT=$cache/vllm TORCHINDUCTOR_CACHE_DIR=$cache/inductor
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$run/.ray_token.$job
(umask 077; od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "$RAY_AUTH_TOKEN_PATH")

# --- start: the daemons in their own steps, the driver here (with pyxis in a step, the only way in) ---
common=(--address-file "$logs/address" --timeout "$start_timeout" "${interface[@]}")
ray=("${inside[@]}" "${daemon[@]}" "${common[@]}" --job "$job" --temp "$scratch" --cpus "$cpus" --gpus "$gpus" --object-store "$object_store")
daemons=()
on_nodes head "${ray[@]}" --head & daemons+=($!)
if [ "$nodes" -gt 1 ]; then
  on_nodes workers "${ray[@]}" & daemons+=($!)
fi
drive=("${inside[@]}")
[ ${#step_container[@]} -gt 0 ] && drive=("${step[@]}" -N1 -n1 -w "$head" "${step_container[@]}")
"${drive[@]}" "${driver[@]}" "${common[@]}" "$run/submitted.yaml" > "$logs/driver.log" 2>&1 & pid=$!

# --- until it ends, or a node does ---
lost=
while kill -0 "$pid" 2>/dev/null; do
  sleep 0.5 & wait $! # a trap ends the wait
  for one in "${daemons[@]}"; do
    if [ -z "$lost" ] && ! kill -0 "$one" 2>/dev/null; then
      lost=$SECONDS
      stop "lost a Ray node"
    fi
  done
  [ -n "$over" ] && kill -KILL "$pid" 2>/dev/null
  if [ -n "$lost" ]; then
    [ $((SECONDS - lost)) -gt "$lost_patience" ] && kill -TERM "$pid" 2>/dev/null
    [ $((SECONDS - lost)) -gt $((lost_patience + 10)) ] && kill -KILL "$pid" 2>/dev/null
  fi
done
wait "$pid" 2>/dev/null; code=$?
say "driver ended with $code after ${SECONDS} s${stopped:+, stopped by $stopped}"
[ "$code" -ne 0 ] && tail -n 20 "$logs/driver.log"

# --- tear down what is ours: `ray stop` would end every Ray of this user on the node ---
# At the time limit there is no time for it: the requeue ends the steps.
if [ -z "$over" ]; then
  kill "${daemons[@]}" 2>/dev/null; wait "${daemons[@]}" 2>/dev/null
  everywhere rm -rf "$scratch" 2>> "$logs/srun.log"
fi
rm -f "$RAY_AUTH_TOKEN_PATH" "$run/STOP"

# --- again? ---
case $code in
  0) leave 0 "done" ;;
  2) leave 2 "bad input" ;;
  70) leave 70 bug ;;
esac
if [ "$(progress)" -gt "$began" ]; then stuck=0; else stuck=$(($(cat "$run/logs/stuck" 2>/dev/null || echo 0) + 1)); fi
echo "$stuck" > "$run/logs/stuck"
if [ "$stuck" -ge "$max_restarts" ]; then
  say "$stuck restarts in a row finished no phase: giving up; see $logs, then submit again"
  rm -f "$run/logs/stuck"
  leave 70 "gave up"
fi
if [ -n "$local_run" ]; then say "go on with: coevo submit --local, or coevo resume $run"; leave 75 stopped; fi
if [ -n "$ended" ]; then say "ended by Slurm: not requeued from here; submit again to go on"; leave 75 cancelled; fi
event end code "$code" stopped "${stopped:-no}" decision requeue
say "requeue after attempt $attempt ($stuck in a row without a finished phase)"
trap '' TERM # Slurm ends this script as it requeues
scontrol requeue "$handle" && sleep 120
say "the requeue was refused; submit again to go on"
exit 75
