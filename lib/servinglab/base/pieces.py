"""How numba makes one kernel out of many small functions: in the time, and as fast, as if it were one large function.

numba optimises each function and makes machine code of it, and does so again in each that it is built into: with the
depth of the calls the time of a first run grows manifold. Here a piece stays as it is until the whole is compiled.

Nothing is counted from an array's end, either: the code for it is a tenth of a busy loop's instructions.
"""

from __future__ import annotations

from typing import Any

from numba.core import ir, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import LoweringPass, register_pass
from numba.core.typed_passes import AnnotateTypes, NativeLowering
from numba.core.types.containers import UniTuple

_UNSIGNED = {types.intp: types.uintp, UniTuple(types.intp, 2): UniTuple(types.uintp, 2)}


@register_pass(mutates_CFG=False, analysis_only=False)
class _IndexFromStart(LoweringPass):
    """Take what an array is indexed by for unsigned."""

    _name = "index_from_start"

    def __init__(self) -> None:
        LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        for node, call in list(state.calltypes.items()):
            if isinstance(node, ir.SetItem) or getattr(node, "op", "") == "getitem":
                array, index, *value = call.args
                if isinstance(array, types.Array) and index in _UNSIGNED:
                    del state.calltypes[node]  # which refuses to replace one
                    state.calltypes[node] = call.replace(args=(array, _UNSIGNED[index], *value))
        return True


class KernelCompiler(Compiler):
    """Compiles a function that Python calls."""

    def define_pipelines(self) -> list[Any]:
        """As numba's own, and indices count from the start."""
        (passes,) = super().define_pipelines()
        passes.add_pass_after(_IndexFromStart, AnnotateTypes)
        passes.finalize()
        return [passes]


class _Unbuilt(JITCodeLibrary):
    """A piece's code, which is optimised and made machine code only with the whole that it is linked into."""

    def add_ir_module(self, ir_module: Any) -> None:
        for function in ir_module.functions:
            if not function.is_declaration and "alwaysinline" not in function.attributes:
                function.attributes.add("noinline")  # it stays apart
        super().add_ir_module(ir_module)

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


@register_pass(mutates_CFG=False, analysis_only=True)
class _Register(LoweringPass):
    """Let other functions find a piece, which has no machine code to be found by."""

    _name = "register_piece"

    def __init__(self) -> None:
        LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        key = object().__reduce_ex__  # numba knows a function by a built-in one; this one raises if Python calls it
        state.cr = state.cr._replace(cfunc=key)
        state.targetctx.insert_user_function(key, state.cr.fndesc, [state.library])
        return True


class PieceCompiler(KernelCompiler):
    """Compiles a function that only others of its kind, and kernels, call."""

    def define_pipelines(self) -> list[Any]:
        """As for a kernel, but without machine code."""
        state = self.state
        state.library = _Unbuilt(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        (passes,) = super().define_pipelines()
        passes.add_pass_after(_Register, NativeLowering)
        passes.finalize()
        return [passes]
