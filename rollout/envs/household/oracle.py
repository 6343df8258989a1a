"""Two experts: `oracle_plan` knows the whole state, `Explorer` only what it has been shown.

The oracle proves that a game is solvable; the Explorer makes demonstrations, since each of its
commands follows from the observations that a policy has as well.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from rollout.envs.household.goals import STATIONS, goal_of
from rollout.envs.household.layout import Layout
from rollout.envs.household.tables import load_tables
from rollout.envs.household.world import World


class NoPlan(ValueError):
    """The oracle found no solution: the goal's objects or places are missing."""


def oracle_plan(layout: Layout) -> list[str]:
    """Commands that solve the game from its initial state.

    Raises NoPlan, naming what is missing."""
    world = World(layout)
    world.reset()
    goal, plan = layout.goal, list[str]()

    def do(command: str) -> None:
        if command not in world.admissible:
            raise NoPlan(f"{goal}: {command!r} is not admissible after {plan}")
        world.step(command)
        plan.append(command)

    def visit(r: int, inside: bool = False) -> None:
        name = world.receptacles[r].name
        if r not in world.here:
            do(f"go to {name}")
        if inside and not world.accessible(r):
            do(f"open {name}")

    def fetch() -> int:
        for r, recep in enumerate(world.receptacles):
            for i in sorted(world.contents[r]):
                if recep.type != goal.parent and world.items[i].type == goal.target:
                    visit(r, inside=True)
                    do(f"take {world.items[i].name} from {recep.name}")
                    return i
        raise NoPlan(f"{goal}: no {goal.target} outside a {goal.parent or 'receptacle'}")

    def place_of(kind: str) -> int:
        for r, recep in enumerate(world.receptacles):
            if recep.type == kind:
                return r
        raise NoPlan(f"{goal}: there is no {kind}")

    for _ in range(2 if goal.task_type == "pick_two" else 1):
        item = world.items[fetch()].name
        if goal.task_type == "look_light":
            for r in range(len(world.receptacles)):
                for lamp in sorted(world.contents[r]):
                    if world.items[lamp].type == goal.lamp and not world.won:
                        visit(r)
                        do(f"use {world.items[lamp].name}")
            continue
        if goal.task_type in STATIONS:
            verb, kind = STATIONS[goal.task_type]
            station = place_of(kind)
            visit(station)
            do(f"{verb} {item} with {world.receptacles[station].name}")
        parent = place_of(goal.parent)
        visit(parent, inside=True)
        do(f"move {item} to {world.receptacles[parent].name}")
    if not world.won:
        raise NoPlan(f"{goal}: not reached after {plan}")
    return plan


_ARRIVED = re.compile(r"You (?:arrive at|open the) (?P<place>[a-z]+ \d+)\. ")
_LISTED = re.compile(
    r"(?:On|The) (?:the )?(?P<place>[a-z]+ \d+)(?: is open\. In it)?, you see (.*)\.$"
)
_NAMED = re.compile(r"\ba ([a-z]+ \d+)")
_DONE = re.compile(
    r"You (?P<verb>pick up|move|clean|heat|cool) the (?P<item>[a-z]+ \d+) "
    r"(?:from|to|using) the (?P<place>[a-z]+ \d+)\.$"
)


def _kind(name: str) -> str:
    return name.split(" ", 1)[0]


class Explorer:
    """An expert that reads: instruction, texts and admissible commands, nothing else.

    It searches places in order of plausibility (those whose kind can hold the object first) and
    may follow another policy's commands: tell it each with `observe`, ask `command` at any time.
    `rng` shuffles equally plausible places, for varied demonstrations; None keeps their order.
    """

    def __init__(
        self, instruction: str, choices: Sequence[str], rng: random.Random | None = None
    ) -> None:
        self.goal = goal_of(instruction)
        self._choices: Sequence[str] = tuple(choices)
        places = [c.removeprefix("go to ") for c in choices if c.startswith("go to ")]
        if rng is not None:
            rng.shuffle(places)
        tables = load_tables()
        self._places = sorted(places, key=lambda p: not tables.fits(self.goal.target, _kind(p)))
        self._unsearched = list(self._places)
        self._seen: dict[str, str] = {}  # object -> place, as last observed
        self._processed: set[str] = set()
        self._held: str | None = None

    def observe(self, text: str, choices: Sequence[str]) -> None:
        """Take in the text that a command got and the commands admissible after it."""
        self._choices = tuple(choices)
        if found := _DONE.match(text):
            self._follow(found["verb"], found["item"], found["place"])
            return
        body = _ARRIVED.sub("", text)
        if found := _LISTED.match(body):
            place = found["place"]
            self._seen = {o: p for o, p in self._seen.items() if p != place}
            self._seen.update(dict.fromkeys(_NAMED.findall(found[2]), place))
            if place in self._unsearched:
                self._unsearched.remove(place)

    def command(self) -> str:
        """The next command; always one of the admissible ones."""
        if self._held is None:
            return self._fetch() or self._explore()
        if _kind(self._held) != self.goal.target:
            return self._put_away(self._held)
        if self.goal.task_type == "look_light":
            return self._light() or self._explore()
        return self._deliver(self._held)

    def _follow(self, verb: str, item: str, place: str) -> None:
        if verb == "pick up":
            self._held = item
            self._seen.pop(item, None)
        elif verb == "move":
            self._held = None
            self._seen[item] = place
        elif self.goal.task_type in STATIONS:
            if verb == STATIONS[self.goal.task_type][0]:
                self._processed.add(item)
            elif verb in ("heat", "cool"):  # each undoes the other
                self._processed.discard(item)

    def _first(self, kind: str) -> str | None:
        return next((p for p in sorted(self._places) if _kind(p) == kind), None)

    def _fetch(self) -> str | None:
        """Towards a known target object that is not yet where it belongs."""
        destination = self._first(self.goal.parent)
        needs_processing = self.goal.task_type in STATIONS
        wanted = [
            (o, p)
            for o, p in self._seen.items()
            if _kind(o) == self.goal.target
            and (p != destination or (needs_processing and o not in self._processed))
        ]
        if not wanted:
            return None
        item, place = min(wanted, key=lambda op: (f"examine {op[1]}" not in self._choices, op))
        return self._at(place, f"take {item} from {place}")

    def _deliver(self, item: str) -> str:
        if self.goal.task_type in STATIONS and item not in self._processed:
            verb, kind = STATIONS[self.goal.task_type]
            station = self._first(kind)
            if station is not None:
                return self._at(station, f"{verb} {item} with {station}")
        destination = self._first(self.goal.parent)
        if destination is None:
            return "look"
        return self._at(destination, f"move {item} to {destination}")

    def _light(self) -> str | None:
        for item, place in sorted(self._seen.items()):
            if _kind(item) == self.goal.lamp:
                return self._at(place, f"use {item}")
        return None

    def _put_away(self, item: str) -> str:
        """Rid the hands of an object that is not wanted."""
        for choice in self._choices:
            if choice.startswith(f"move {item} to "):
                return choice
        tables = load_tables()
        for place in self._places:
            if tables.fits(_kind(item), _kind(place)) and not self._stuck(place):
                return self._at(place, f"move {item} to {place}")
        return "look"

    def _stuck(self, place: str) -> bool:
        """Here, open, and still not admitting what the tables promise."""
        return f"examine {place}" in self._choices and f"open {place}" not in self._choices

    def _explore(self) -> str:
        for place in self._unsearched:
            if f"examine {place}" in self._choices:
                closed = f"open {place}"
                return closed if closed in self._choices else f"examine {place}"
        for place in self._unsearched:
            if f"go to {place}" in self._choices:
                return f"go to {place}"
        return "look"

    def _at(self, place: str, command: str) -> str:
        """`command`, or what must come before it: walking to the place, opening it."""
        for step in (command, f"go to {place}", f"open {place}"):
            if step in self._choices:
                return step
        return "look"
