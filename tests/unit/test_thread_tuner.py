"""The number of threads that generate, on made-up machines: a token's time, and the feeding thread's share."""

from __future__ import annotations

import itertools

import pytest

from edgekv.cells.decoder import BACKOFF, LONGEST_BACKOFF, WINDOW, ThreadTuner

ALONE = {1: (1.0, 1.0), 2: (0.6, 0.97), 4: (0.4, 0.95), 8: (0.3, 0.93)}  # threads: seconds of a token, share
CROWDED = {1: (1.0, 0.9), 2: (0.8, 0.6), 4: (1.7, 0.5), 8: (3.0, 0.4)}
UNEVEN = {1: (1.0, 1.0), 2: (0.8, 0.7), 4: (0.5, 0.6), 8: (0.4, 0.5)}  # threads wait, but it is faster with them


def generate(threads, machine, n_tokens):
    """Seconds that tokens take; `told` follows what the decoder is told."""
    told, seconds = threads.now, 0.0
    for _ in range(n_tokens):
        taken, share = machine[told]
        seconds += taken
        changed = threads.decoded(taken, share * taken)
        assert changed == (threads.now != told)
        told = threads.now
    return seconds


@pytest.mark.parametrize("most", [1, 2, 4, 8])
def test_a_machine_of_its_own_has_all_threads(most):
    threads = ThreadTuner(most)
    for _ in range(100):
        generate(threads, ALONE, WINDOW)
        assert threads.now == most


@pytest.mark.parametrize("most", [2, 4, 8])
def test_beside_others_it_takes_the_fastest_number_and_goes_back_when_they_have_ended(most):
    threads = ThreadTuner(most)
    generate(threads, CROWDED, WINDOW * BACKOFF * 16)
    best = min((seconds, n) for n, (seconds, _) in CROWDED.items() if n <= most)[0]
    n_tokens = WINDOW * LONGEST_BACKOFF * 2
    assert generate(threads, CROWDED, n_tokens) < 1.05 * best * n_tokens
    generate(threads, ALONE, WINDOW * LONGEST_BACKOFF * 4)
    assert threads.now == most


def test_threads_that_wait_but_serve_stay():
    """The price is a few tokens that fewer threads try, ever more rarely."""
    threads, n_tokens = ThreadTuner(8), WINDOW * LONGEST_BACKOFF * 4
    assert generate(threads, UNEVEN, n_tokens) < 1.01 * UNEVEN[8][0] * n_tokens
    assert threads.now == 8


def test_trials_that_fail_become_rarer_up_to_a_limit():
    """So a machine that others begin to use is found out in the end."""
    threads, trials = ThreadTuner(8), []
    for look in range(10 * LONGEST_BACKOFF):
        generate(threads, UNEVEN, WINDOW)
        if threads.now < 8:
            trials.append(look)
    gaps = [later - earlier for earlier, later in itertools.pairwise(trials)]
    assert gaps == sorted(gaps)
    assert gaps[0] < 4 * BACKOFF
    assert LONGEST_BACKOFF <= gaps[-1] <= LONGEST_BACKOFF + 2


def test_one_thread_is_never_fewer():
    threads = ThreadTuner(1)
    generate(threads, {1: (1.0, 0.1)}, WINDOW * BACKOFF * 4)
    assert threads.now == 1
