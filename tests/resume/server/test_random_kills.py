"""kill -9 at moments that a seed draws, under live writes; VREPLICATION_SEED (printed at the top) repeats them."""

from __future__ import annotations

import os

import kills
import pytest
from live_setup import Live

pytestmark = pytest.mark.either


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
@pytest.mark.in_turn
def test_random_kill(live: Live, number: int) -> None:
    kill = kills.draw_moment(int(os.environ["VREPLICATION_SEED"]), number, is_late=number % 2 == 1)
    print(f"kill {number}: {kill.victim}, {kill}")
    print(kills.run(live, kill))
