# The package itself: its stubs say what there is, it needs no PyTorch, and holds on to no memory.
import ast
import gc
import inspect
import os
import pathlib
import subprocess
import sys

import millrace
from millrace import _millrace


def stubs():
    path = pathlib.Path(millrace.__file__).with_name("_millrace.pyi")
    return ast.parse(path.read_text())


def public(thing):
    return {name for name in vars(thing) if not name.startswith("_")} - {"action_dtype"}


def test_the_stubs_name_everything_there_is():
    functions = {node.name for node in stubs().body if isinstance(node, ast.FunctionDef)}
    classes = {node.name: node for node in stubs().body if isinstance(node, ast.ClassDef)}
    assert functions | set(classes) == public(_millrace)
    for name, node in classes.items():
        members = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
        members |= {member.target.id for member in node.body if isinstance(member, ast.AnnAssign)}
        assert {member for member in members if not member.startswith("_")} == public(getattr(_millrace, name)), name


def test_the_stubs_name_every_parameter_of_a_schedule():
    names = {parameter.name for parameter in millrace.parameters()}
    for node in stubs().body:
        if isinstance(node, ast.FunctionDef) and node.name in ("generate", "compare"):
            arguments = {argument.arg for argument in node.args.args + node.args.kwonlyargs}
            assert arguments == names | {"costs"} | ({"name"} if node.name == "generate" else {"schedules"})


def test_everything_says_what_it_is():
    for name in millrace.__all__:
        assert name == "action_dtype" or inspect.getdoc(getattr(millrace, name)), name
    for name in public(millrace.Program):
        assert inspect.getdoc(getattr(millrace.Program, name)) or name in ("name", "shape"), name


def test_importing_needs_neither_pytorch_nor_a_build_beside_it():
    script = "import sys, millrace; print('torch' in sys.modules, len(millrace.schedules()) > 20)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "False True\n"


def resident_mib():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def one_round():
    program = millrace.generate("zb-h1", 4, 64, costs={"forward": [1, 2, 1, 1]})
    again = millrace.Program(program.ranks)
    again.simulate({"latency": 0.5})
    again.verify(memory_limit=1)
    again.svg()
    millrace.Program.from_plan(again.to_plan())
    millrace.search(2, 4, budget=20)
    for broken in (lambda: millrace.Program([["0X0"]]), lambda: again.simulate({"forward": [1, 2, 3]})):
        try:
            broken()
        except millrace.InvalidArgument:
            pass


def test_memory_stays_flat():
    for _ in range(20):
        one_round()
    gc.collect()
    before = resident_mib()
    for _ in range(150):
        one_round()
    gc.collect()
    assert resident_mib() - before < 8
