"""The household simulator: state, commands and texts, word for word those of ALFWorld's engine.

Rules are alfred.pddl's actions, texts alfred.twl2's grammar (alfworld 0.4.2), including their
quirks: only a held object can be examined, `look` at the start names no receptacle, a lamp is
only ever turned on. Held to the real engine by tests/integration/test_household_parity.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rollout.envs.household import goals, pddl
from rollout.envs.household.layout import GameSpec, Layout, layout_of

NOTHING_HAPPENS = "Nothing happens."
BANNER = "-= Welcome to TextWorld, ALFRED! =-"
HELP = """Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""
KNIVES = frozenset({"knife", "butterknife"})

Action = Callable[[], str]


class World:
    """One running game. Not thread-safe; two worlds share nothing that changes.

    Public state, by index into `receptacles` and `items`: `location`, `here` (receptacles at it),
    `held`, `contents`, `opened`, `clean`, `hot`, `cool`, `toggled`, `sliced`. Read it, do not
    write it.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.receptacles = layout.receptacles
        self.items = layout.items
        self._at: dict[int, tuple[int, ...]] = {}
        for r, recep in enumerate(layout.receptacles):
            self._at[recep.location] = (*self._at.get(recep.location, ()), r)
        self._travel: dict[int, dict[str, Action]] = {}
        self.reset()

    @staticmethod
    def from_spec(spec: GameSpec) -> World:
        return World(layout_of(spec))

    @staticmethod
    def from_pddl(game: Mapping[str, Any]) -> World:
        """A world from a `.tw-pddl` game (its parsed JSON), official or written by `pddl`.

        Raises pddl.PddlError for a file that is no such game or asks for another kind of goal."""
        return World(pddl.parse_game(game))

    def reset(self) -> str:
        """Back to the initial state; returns the opening text."""
        items = self.items
        self.location = self.layout.start
        self.held = self.layout.held
        self.contents: list[set[int]] = [set() for _ in self.receptacles]
        for i, item in enumerate(items):
            for r in item.inside:
                self.contents[r].add(i)
        self.opened = {r for r, recep in enumerate(self.receptacles) if recep.opened}
        self.clean = {i for i, item in enumerate(items) if item.clean}
        self.hot = {i for i, item in enumerate(items) if item.hot}
        self.cool = {i for i, item in enumerate(items) if item.cool}
        self.toggled = {i for i, item in enumerate(items) if item.toggled}
        self.sliced = {i for i, item in enumerate(items) if item.sliced}
        self._standpoints = {(i, loc) for i, item in enumerate(items) for loc in item.locations}
        self._taken: set[tuple[int, int]] = set()
        self._refresh()
        return (
            f"{BANNER}\n\n{self._look(opening=True)}\n\nYour task is to: {self.layout.instruction}"
        )

    @property
    def here(self) -> tuple[int, ...]:
        return self._at.get(self.location, ())

    @property
    def won(self) -> bool:
        return goals.satisfied(self.layout.goal, self)

    def accessible(self, r: int) -> bool:
        """Whether receptacle `r` has no door or its door is open."""
        return not self.receptacles[r].openable or r in self.opened

    def visible(self) -> set[int]:
        """Items in the accessible receptacles at the agent's standpoint."""
        seen: set[int] = set()
        for r in self.here:
            if self.accessible(r):
                seen |= self.contents[r]
        return seen

    def step(self, command: str) -> str:
        """Carry out one command; returns its text. A command that is not in `admissible` changes
        nothing and returns NOTHING_HAPPENS."""
        action = self._actions.get(command.strip())
        if action is None:
            return NOTHING_HAPPENS
        text = action()
        self._refresh()
        return text

    # Commands that are admissible now.

    def _refresh(self) -> None:
        held, receptacles, items = self.held, self.receptacles, self.items
        # Rooms have up to 60 receptacles: the walking commands of a standpoint are built once.
        actions = dict(self._walks())
        actions["look"] = self._look
        actions["inventory"] = self._inventory
        actions["help"] = self._help
        for r in self.here:
            recep = receptacles[r]
            actions[f"examine {recep.name}"] = _bind(self._describe, r)
            if recep.openable:
                if r in self.opened:
                    actions[f"close {recep.name}"] = _bind(self._close, r)
                else:
                    actions[f"open {recep.name}"] = _bind(self._open, r)
            accessible = self.accessible(r)
            for i in self.contents[r]:
                item = items[i]
                if accessible and held is None and item.pickupable:
                    actions[f"take {item.name} from {recep.name}"] = _bind(self._take, i, r)
                if item.toggleable:
                    actions[f"use {item.name}"] = _bind(self._use, i)
            if held is not None:
                self._add_held(actions, held, r, accessible)
        if held is not None:
            item = items[held]
            actions[f"examine {item.name}"] = _bind(self._examine, held)
            if item.type in KNIVES:
                for i, location in self._standpoints:
                    if location == self.location and items[i].sliceable:
                        actions[f"slice {items[i].name} with {item.name}"] = _bind(
                            self._slice, i, held
                        )
        self._actions: dict[str, Action] = actions
        self.admissible: list[str] = sorted(actions)

    def _walks(self) -> dict[str, Action]:
        walks = self._travel.get(self.location)
        if walks is None:
            walks = self._travel[self.location] = {
                f"go to {recep.name}": _bind(self._go, r)
                for r, recep in enumerate(self.receptacles)
                if recep.location != self.location
            }
        return walks

    def _add_held(self, actions: dict[str, Action], i: int, r: int, accessible: bool) -> None:
        item, recep = self.items[i], self.receptacles[r]
        if accessible and (recep.type, item.type) in self.layout.can_contain:
            actions[f"move {item.name} to {recep.name}"] = _bind(self._move, i, r)
        if item.cleanable and recep.type == "sinkbasin":
            actions[f"clean {item.name} with {recep.name}"] = _bind(self._clean, i, r)
        if item.heatable and recep.type == "microwave":
            actions[f"heat {item.name} with {recep.name}"] = _bind(self._heat, i, r)
        if item.coolable and recep.type == "fridge":
            actions[f"cool {item.name} with {recep.name}"] = _bind(self._cool, i, r)

    # Commands: each changes the state and returns its text.

    def _go(self, r: int) -> str:
        self.location = self.receptacles[r].location
        return f"You arrive at {self.receptacles[r].name}. {self._describe(r)}"

    def _open(self, r: int) -> str:
        self.opened.add(r)
        return f"You open the {self.receptacles[r].name}. {self._describe(r)}"

    def _close(self, r: int) -> str:
        self.opened.discard(r)
        return f"You close the {self.receptacles[r].name}."

    def _take(self, i: int, r: int) -> str:
        self.contents[r].discard(i)
        self._taken.add((i, r))
        self._standpoints.discard((i, self.location))
        self.held = i
        return f"You pick up the {self.items[i].name} from the {self.receptacles[r].name}."

    def _move(self, i: int, r: int) -> str:
        self.contents[r].add(i)
        self._taken.discard((i, r))
        self._standpoints.add((i, self.location))
        self.held = None
        return f"You move the {self.items[i].name} to the {self.receptacles[r].name}."

    def _clean(self, i: int, r: int) -> str:
        self.clean.add(i)
        return f"You clean the {self.items[i].name} using the {self.receptacles[r].name}."

    def _heat(self, i: int, r: int) -> str:
        self.hot.add(i)
        self.cool.discard(i)
        return f"You heat the {self.items[i].name} using the {self.receptacles[r].name}."

    def _cool(self, i: int, r: int) -> str:
        self.cool.add(i)
        self.hot.discard(i)
        return f"You cool the {self.items[i].name} using the {self.receptacles[r].name}."

    def _use(self, i: int) -> str:
        self.toggled.add(i)
        return f"You turn on the {self.items[i].name}."

    def _slice(self, i: int, knife: int) -> str:
        self.sliced.add(i)
        return f"You sliced the {self.items[i].name} with the {self.items[knife].name}."

    def _inventory(self) -> str:
        if self.held is None:
            return "You are not carrying anything."
        return f"You are carrying: a {self.items[self.held].name}."

    def _help(self) -> str:
        return HELP

    # Texts.

    def _describe(self, r: int) -> str:
        recep = self.receptacles[r]
        if not self.accessible(r):
            return f"The {recep.name} is closed."
        listing = _listing([self.items[i].name for i in sorted(self.contents[r])])
        if recep.openable:
            return f"The {recep.name} is open. In it, you see {listing}."
        return f"On the {recep.name}, you see {listing}."

    def _look(self, opening: bool = False) -> str:
        here = self.here
        if not here:
            names = [recep.name for recep in self.receptacles] if opening else []
            return (
                "You are in the middle of a room. Looking quickly around you, "
                f"you see {_listing(names)}."
            )
        # "Next to it": taken from a receptacle here, yet recorded at this standpoint.
        floor = [
            self.items[i].name
            for i, location in sorted(self._standpoints)
            if location == self.location
            for r in here
            if (i, r) in self._taken
        ]
        facing = _join([self.receptacles[r].name for r in here])
        return f"You are facing the {facing}. Next to it, you see {_listing(floor)}."

    def _examine(self, i: int) -> str:
        item = self.items[i]
        if item.container:
            inner = [other.name for other in self.items if other.within == i]
            return f"This is a normal {item.name}. In it, you see {_listing(inner)}."
        clean, sliced = i in self.clean, i in self.sliced
        if i in self.hot:
            state = "hot and clean" if clean else "hot"
        elif i in self.cool:
            state = "cool and clean" if clean else "cool" if sliced else "cold"
        else:
            state = "clean" if clean else ""
        words = " ".join(w for w in (state, "sliced" if sliced else "") if w)
        if words:
            return f"This is a {words} {item.name}."
        if item.toggleable and i in self.toggled:
            return f"This {item.name} is on."
        return f"There's nothing special about {item.name}."


def _bind(method: Callable[..., str], *args: int) -> Action:
    return lambda: method(*args)


def _join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + ", and " + names[-1]


def _listing(names: list[str]) -> str:
    return _join([f"a {name}" for name in names]) if names else "nothing"
