"""CUDA graphs that an op captures of its own calls, so that a call costs the host one launch and not one for every kernel.

A call of a count is captured when that count comes for the third time, and replayed from then on. What differs between calls is where x and y
lie: kernels that touch them get the new addresses by an update of their nodes' parameters, which later launches see and earlier ones do not.
Whether a call is replayed depends on its count and its number alone, which all ranks know (design/runtime.md, Agreement): NCCL wants
captures to be uniform over ranks, and its nodes see wire memory only, which does not move.

The driver is called through ctypes: an update and a launch are to cost a few microseconds, and bindings that build objects for each do not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from .errors import CollectiveError

if TYPE_CHECKING:
    from ..codegen.launch import Prepared, UserKernel

CAPTURED_AT = 3
# Counts of an op that get a graph, the first ones that come that often; a graph holds its tables and its nodes.
MAX_GRAPHS = 16
_THREAD_LOCAL = 1

_Address = ctypes.c_void_p


class _KernelParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h."""

    _fields_ = [
        ("func", _Address),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("arguments", ctypes.POINTER(_Address)),
        ("extra", _Address),
        ("kernel", _Address),
        ("context", _Address),
    ]


@lru_cache(maxsize=1)
def _driver() -> Any:
    """libcuda, with the calls that are used here. Raises OSError or AttributeError where it has them not."""
    cuda: Any = ctypes.CDLL("libcuda.so.1")
    size, out = ctypes.c_size_t, ctypes.POINTER
    for name, arguments in {
        "cuStreamBeginCapture_v2": [_Address, ctypes.c_int],
        "cuStreamEndCapture": [_Address, out(_Address)],
        "cuStreamGetCaptureInfo_v2": [
            _Address,
            out(ctypes.c_int),
            out(ctypes.c_uint64),
            out(_Address),
            out(out(_Address)),
            out(size),
        ],
        "cuGraphInstantiateWithFlags": [out(_Address), _Address, ctypes.c_ulonglong],
        "cuGraphKernelNodeGetParams_v2": [_Address, out(_KernelParams)],
        "cuGraphExecKernelNodeSetParams_v2": [_Address, _Address, out(_KernelParams)],
        "cuGraphLaunch": [_Address, _Address],
        "cuGraphExecDestroy": [_Address],
        "cuGraphDestroy": [_Address],
        "cuFuncGetParamInfo": [_Address, size, out(size), out(size)],
        "cuGetErrorString": [ctypes.c_int, out(ctypes.c_char_p)],
    }.items():
        function = getattr(cuda, name)
        function.argtypes, function.restype = arguments, ctypes.c_int
    return cuda


def unavailable(device: torch.device) -> str:
    """Why an op on this device can capture no graphs, or ""."""
    if device.type != "cuda":
        return f"tensors are on {device}"
    try:
        _driver()
    except (OSError, AttributeError) as e:
        return f"this CUDA driver lacks a call ({e})"
    return ""


def _checked(code: int, what: str) -> None:
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise CollectiveError(f"CUDA graph of an op's call: {what} failed: {(text.value or b'').decode()} ({code})")


class _Node:
    """A kernel node that touches x and y, ready for updates. params: by whether x and y keep 16 bytes."""

    def __init__(self, node: int, kernel: UserKernel, x: ctypes.c_uint64, y: ctypes.c_uint64):
        cuda = _driver()
        self.node = _Address(node)
        own = _KernelParams()
        _checked(cuda.cuGraphKernelNodeGetParams_v2(self.node, ctypes.byref(own)), "reading a node")
        count, size = 0, ctypes.c_size_t()
        while cuda.cuFuncGetParamInfo(own.func, count, ctypes.byref(size), ctypes.byref(size)) == 0:
            count += 1
        self._arguments = (_Address * count)(*own.arguments[:count])
        self._arguments[0], self._arguments[1] = ctypes.addressof(x), ctypes.addressof(y)
        self.params = {aligned: self._variant(own, kernel, aligned) for aligned in (True, False)}

    def _variant(self, own: _KernelParams, kernel: UserKernel, aligned: bool) -> Any:
        made = _KernelParams.from_buffer_copy(own)
        made.func, made.shared = kernel.variants[aligned and kernel.offsets_aligned]
        # Set by the driver for what the node had; with a function, it is the function that counts.
        made.kernel = None
        made.arguments = ctypes.cast(self._arguments, ctypes.POINTER(_Address))
        return ctypes.byref(made)


class OwnGraph:
    """One captured call. held: what its kernels use.

    inputs, outputs  elements of x and y; in_place: whether y may be x
    """

    def __init__(
        self,
        device: torch.device,
        run: Callable[[Callable[[Prepared], None]], None],
        px: int,
        py: int,
        inputs: int,
        outputs: int,
        in_place: bool,
        held: Any,
    ):
        """run: does the call on the current stream, and tells every launch of a Fold. px, py: addresses of that call's tensors."""
        cuda = _driver()
        self.inputs, self.outputs, self.in_place, self.held = inputs, outputs, in_place, held
        self._px, self._py, self._x, self._y = px, py, ctypes.c_uint64(px), ctypes.c_uint64(py)
        self._exec, self._graph = _Address(), _Address()
        found: list[tuple[int, UserKernel]] = []

        def launched(step: Prepared) -> None:
            kernel = step.user_kernel
            if kernel is not None:
                found.append((_last_node(torch.cuda.current_stream(device).cuda_stream), kernel))

        stream = _capture_stream(device)
        with torch.cuda.device(device), torch.cuda.stream(stream):
            _checked(cuda.cuStreamBeginCapture_v2(stream.cuda_stream, _THREAD_LOCAL), "beginning the capture")
            try:
                run(launched)
            except BaseException:
                cuda.cuStreamEndCapture(stream.cuda_stream, ctypes.byref(self._graph))
                raise
            _checked(cuda.cuStreamEndCapture(stream.cuda_stream, ctypes.byref(self._graph)), "ending the capture")
            _checked(cuda.cuGraphInstantiateWithFlags(ctypes.byref(self._exec), self._graph, 0), "instantiating it")
        self._nodes = [_Node(node, kernel, self._x, self._y) for node, kernel in found]
        self._set, self._launch = cuda.cuGraphExecKernelNodeSetParams_v2, cuda.cuGraphLaunch

    def launch(self, px: int, py: int, stream: int) -> None:
        """Run the call on tensors at these addresses, on this stream (a cudaStream_t)."""
        if px != self._px or py != self._py:
            self._x.value, self._y.value = px, py
            aligned = (px | py) & 15 == 0
            for node in self._nodes:
                code = self._set(self._exec, node.node, node.params[aligned])
                if code:
                    self._px = self._py = 0
                    _checked(code, "moving it to other tensors")
            self._px, self._py = px, py
        code = self._launch(self._exec, stream)
        if code:
            _checked(code, "launching it")

    def __del__(self) -> None:
        cuda = _driver()
        if self._exec:
            cuda.cuGraphExecDestroy(self._exec)
        if self._graph:
            cuda.cuGraphDestroy(self._graph)


def _last_node(stream: int) -> int:
    """The node that was captured last on a stream."""
    status, number, graph = ctypes.c_int(), ctypes.c_uint64(), _Address()
    nodes, count = ctypes.POINTER(_Address)(), ctypes.c_size_t()
    code = _driver().cuStreamGetCaptureInfo_v2(
        stream,
        ctypes.byref(status),
        ctypes.byref(number),
        ctypes.byref(graph),
        ctypes.byref(nodes),
        ctypes.byref(count),
    )
    _checked(code, "asking for the last node")
    if count.value != 1:
        raise CollectiveError(f"CUDA graph of an op's call: a launch left {count.value} last nodes, not 1")
    return int(nodes[0] or 0)


_streams: dict[torch.device, torch.cuda.Stream] = {}


def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


class OwnGraphs:
    """The graphs of one op. why: the reason for which it has none, or ""."""

    def __init__(self, why: str):
        self.why = why
        self.of: dict[int, OwnGraph] = {}
        self.replays = 0
        self._calls: dict[int, int] = {}

    def due(self, count: int) -> bool:
        """Whether this call, which is not replayed, is one to capture. Counts the call."""
        if self.why or len(self.of) >= MAX_GRAPHS:
            return False
        if len(self._calls) > 64 * MAX_GRAPHS:  # every call has a count of its own
            self._calls.clear()
        calls = self._calls[count] = self._calls.get(count, 0) + 1
        if calls < CAPTURED_AT:
            return False
        del self._calls[count]
        return True

    def describe(self) -> str:
        if self.why:
            return f"graphs of its own: none ({self.why})"
        return f"graphs of its own: {len(self.of)}, replayed {self.replays} times (a count is captured on its call number {CAPTURED_AT})"
