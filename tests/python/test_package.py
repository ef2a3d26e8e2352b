# The package itself: its stubs say what there is, it needs no PyTorch, and holds on to no memory.
import ast
import gc
import inspect
import io
import os
import pathlib
import re
import subprocess
import sys

import pytest

import millrace
from millrace import _millrace


def stubs():
    path = pathlib.Path(millrace.__file__).with_name("_millrace.pyi")
    return ast.parse(path.read_text())


def public(thing):
    return {name for name in vars(thing) if not name.startswith("_")} - {"action_dtype"}


def test_without_numpy_the_import_says_what_is_missing():
    script = "import sys; sys.modules['numpy'] = None; import millrace"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert "ImportError: millrace needs numpy (Debian: python3-numpy; pip install numpy)" in ran.stderr
    assert "initialization failed" not in ran.stderr


def test_the_version_is_that_of_the_command(command):
    assert command.text("--version").startswith(f"millrace {millrace.__version__}, ")


@pytest.mark.parametrize("changed, refusal", [
    ({"sys.platform": "darwin"}, "darwin on x86_64: millrace needs Linux on x86-64"),
    ({"platform.machine": lambda: "aarch64"}, "linux on aarch64: millrace needs Linux on x86-64"),
    ({"cpuinfo": "flags\t\t: fpu avx f16c\n"}, "processor without avx2, bmi1, bmi2, fma, movbe: millrace needs x86-64-v3 (AVX2)"),
])
def test_other_processors_are_refused_by_name(changed, refusal, monkeypatch):
    monkeypatch.setattr("millrace.built.arch", "x86-64-v3")
    millrace.installation.check()
    if text := changed.pop("cpuinfo", None):
        monkeypatch.setattr("millrace.installation.open", lambda *_, **__: io.StringIO(text), raising=False)
    for name, value in changed.items():
        monkeypatch.setattr(name, value)
    with pytest.raises(ImportError, match=f"^{re.escape(refusal)}$"):
        millrace.installation.check()


def test_the_other_project_of_that_name_is_warned_of(tmp_path):
    for name in ("millrace_pipeline", "millrace"):
        folder = tmp_path / f"{name}-0.0.1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0.0.1\n")
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        ran = subprocess.run([sys.executable, "-c", "import millrace"], capture_output=True, text=True, timeout=60,
                             env={**os.environ, "PYTHONPATH": path})
        assert ran.returncode == 0, ran.stderr
        assert ("`millrace` is another project" in ran.stderr) == (name == "millrace")


def test_the_stub_of_the_trainer_has_the_keywords_of_the_settings():
    trainer = next(node for node in stubs().body if getattr(node, "name", "") == "Trainer")
    init = next(member for member in trainer.body if getattr(member, "name", "") == "__init__")
    keywords = re.findall(r"^(\w+): ", millrace.Trainer.__init__.__doc__.split("Keywords:")[1], re.MULTILINE)
    assert [argument.arg for argument in init.args.kwonlyargs] == keywords


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


def said_by_the_module(function):
    """The parameters in the first line of a compiled function's docstring: name, whether by keyword alone, whether there is a
    default; and whether it takes any keyword."""
    text = next(line for line in function.__doc__.splitlines() if ") -> " in line)
    text = text[text.index("(") + 1 : text.rindex(") -> ")]
    text = re.sub(r"'[^']*'", "''", text)
    while text != (flat := re.sub(r"[\[(<][^\[\]()<>]*[\])>]", "", text)):
        text = flat
    parameters, by_keyword = [], False
    for part in filter(None, map(str.strip, text.split(","))):
        if part.startswith("**"):
            return parameters, True
        if part == "*":
            by_keyword = True
        else:
            parameters.append((part.split(":")[0].strip(), by_keyword, "=" in part))
    return parameters, False


def said_by_the_stub(node):
    arguments = node.args
    plain = [argument.arg for argument in arguments.args]
    first_default = len(plain) - len(arguments.defaults)
    return ([(name, False, at >= first_default) for at, name in enumerate(plain)]
            + [(argument.arg, True, default is not None)
               for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults)])


def functions_with_stubs():
    for node in stubs().body:
        if isinstance(node, ast.FunctionDef):
            yield node, getattr(_millrace, node.name)
        for member in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(member, ast.FunctionDef) and not member.decorator_list:
                function = getattr(getattr(_millrace, node.name), member.name)
                if member.name == "__init__" or not member.name.startswith("__"):
                    yield member, function


def test_the_stubs_have_the_parameters_of_the_module():
    compared = 0
    for node, function in functions_with_stubs():
        said, any_keyword = said_by_the_module(function)
        wanted = [parameter for parameter in said_by_the_stub(node) if parameter[0] != "self"]
        said = [parameter for parameter in said if parameter[0] not in ("self", "arg0")]
        if any_keyword:  # which ones is tested by name
            assert [parameter for parameter in wanted if parameter in said] == said, node.name
            assert all(by_keyword and default for _, by_keyword, default in wanted[len(said) :]), node.name
        else:
            assert wanted == said, node.name
        compared += len(said)
    assert compared > 70


def test_the_stubs_name_every_option_of_a_search():
    with pytest.raises(millrace.InvalidArgument) as refused:
        millrace.search(2, 2, nothing=1)
    known = set(re.findall(r"\w+", str(refused.value).split("known are ")[1])) - {"and", "costs", "progress"}
    searches = [node for node, function in functions_with_stubs() if node.name == "search"]
    assert len(searches) == 2
    for node in searches:
        own = {"ranks", "micro_batches", "self", "costs", "progress"}
        names = {name for name, _, _ in said_by_the_stub(node)} - own
        assert names == known - ({"chunks", "slices"} if "ranks" not in ast.dump(node.args) else set())


def test_the_stubs_name_every_member_of_the_costs():
    node = next(node for node, _ in functions_with_stubs() if any(a.arg == "memory_boundary" for a in node.args.kwonlyargs))
    assert {name for name, _, _ in said_by_the_stub(node)} - {"self"} == public(millrace.Costs)


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
