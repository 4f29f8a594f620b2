"""How a write and the product behind it are enqueued: by one thread or two, on streams, in graphs, on several GPUs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from tests.device.scene import Launch, Scene, capture, synchronize, value_of

Order = Callable[[Scene, Launch], Launch]


def in_order(scene, write):
    def launch():
        write()
        scene.multiply()

    return launch


def _get_ready(scene, body):
    """Load and compile what a capture is to hold, and make the promise that holds for it."""
    scene.prepare(value_of(50))
    body()
    synchronize(scene.setting.device)
    scene.prepare(value_of(51))
    scene.is_replayed = True


def in_graph(scene, write, order=in_order):
    body = order(scene, write)
    _get_ready(scene, body)
    return capture(body).replay


def in_two_graphs(scene, write):
    _get_ready(scene, in_order(scene, write))
    graphs = [capture(write), capture(scene.multiply)]

    def launch():
        for graph in graphs:
            graph.replay()

    return launch


def on_side_stream(scene, write):
    """Write on a second stream; events order the two."""
    side = torch.cuda.Stream()

    def launch():
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            write()
        current.wait_stream(side)
        scene.multiply()

    return launch


def on_one_side_stream(scene, write):
    """Write and multiply on a stream that is not the default one."""
    side, both = torch.cuda.Stream(priority=-1), in_order(scene, write)

    def launch():
        with torch.cuda.stream(side):
            both()

    return launch


def in_thread(scene, write):
    """Write in another thread, which has returned before this one multiplies."""
    executor = ThreadPoolExecutor(1)

    def launch():
        executor.submit(write).result()
        scene.multiply()

    return launch


def in_thread_on_side_stream(scene, write):
    """Write in another thread on its own stream, whose event this thread's stream waits for."""
    executor, side = ThreadPoolExecutor(1), torch.cuda.Stream()

    def work():
        with torch.cuda.stream(side):
            write()
            return side.record_event()

    def launch():
        torch.cuda.current_stream().wait_event(executor.submit(work).result())
        scene.multiply()

    return launch


def multiplied_in_thread(scene, write):
    executor = ThreadPoolExecutor(1)

    def launch():
        write()
        executor.submit(scene.multiply).result()

    return launch


def on_current_gpu(scene, write):
    both = in_order(scene, write)

    def launch():
        with torch.cuda.device(scene.device):
            both()

    return launch


def across_gpus(scene, write):
    """Write with the operands' GPU current, multiply with the first."""

    def launch():
        with torch.cuda.device(scene.device):
            write()
        scene.multiply()

    return launch
