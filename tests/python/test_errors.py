# What Python may get wrong: an error of ours with the library's sentence, whatever was handed over.
import pickle
import re

import numpy as np
import pytest

import millrace
from millrace import InvalidArgument, Program


def test_errors_are_value_errors_and_runtime_errors():
    assert issubclass(InvalidArgument, ValueError) and issubclass(InvalidArgument, RuntimeError)
    assert issubclass(millrace.DataError, ValueError)
    assert issubclass(millrace.Stopped, RuntimeError)


REFUSED = {
    "unknown schedule": (lambda: millrace.generate("zbv"), "'zbv'.*zb-v"),
    "count": (lambda: millrace.generate("1f1b", ranks=0), "^ranks 0: must be an integer from 1"),
    "meaning": (lambda: millrace.generate("1f1b", chunks=2), "chunks"),
    "parameter": (lambda: millrace.generate("1f1b", chunk=2), "no parameter of schedules is called 'chunk'"),
    "order": (lambda: millrace.generate("gpipe", order="middle"), "fifo or lifo"),
    "cost member": (lambda: millrace.Costs(forwrd=1), "no member called 'forwrd'; did you mean 'forward'"),
    "cost list": (
        lambda: millrace.generate("1f1b").simulate({"forward": [1, 2, 3]}),
        "^forward has 3 values; allowed are 1, p = 4 or one per stage, 4$"),
    "negative": (lambda: millrace.generate("1f1b").simulate({"forward": -1}), "^forward holds -1; expected"),
    "not finite": (lambda: millrace.Costs(forward=float("nan")), "not finite"),
    "text for a number": (lambda: millrace.Costs(weight="1"), "^weight holds a str; expected a number"),
    "together": (
        lambda: millrace.generate("1f1b").simulate({"bandwidth": 1}),
        "^bandwidth is given without message_bytes; they go together$"),
    "cores": (lambda: millrace.Costs(cores=-1), "^cores is a whole number"),
    "no costs": (lambda: millrace.generate("1f1b").simulate(3), "^costs are a int"),
    "no file": (lambda: millrace.generate("1f1b").simulate("none.json"), "^none.json cannot be read: No such file"),
    "action": (lambda: Program([["0F0", "0X0"]]), "^rank 0: action 1, '0X0': unknown action 'X'; known are"),
    "half a pair": (lambda: Program(["0F0+"]), "^rank 0: the text ends in '\\+'"),
    "two ranks": (lambda: Program([["0F0", "0B0"], ["0F1", "0B1"]]), "stage 0 is on rank 0 and, with 0F1, on rank 1"),
    "missing stage": (lambda: Program([["1F0", "1B0"]]), "stage 0 does not occur"),
    "empty": (lambda: Program([]), "^there is no action"),
    "huge": (lambda: Program([["0F2000000000"]]), "cannot be: there are only 1 actions"),
    "huge slice": (lambda: Program([["0F2000000000.2000000000"]]), "cannot be"),
    "outside": (
        lambda: Program([["0F0"], ["1F0"]], millrace.Shape(1, 1)), "^the program has 2 lists; its shape has 1 ranks"),
    "shape": (lambda: millrace.Shape(2, 2, [0, 5]), "stage 1 is placed on rank 5; the shape has 2 ranks"),
    "mixed": (lambda: Program([["0F0", 1]]), "all texts, or none is"),
    "rows": (lambda: Program([["a"], [object()]]), "rank 0: action 0, 'a'"),
    "objects": (lambda: Program([[object()]]), "^rank 0: the actions of a rank are texts"),
    "dimensions": (
        lambda: Program([np.zeros((2, 2), millrace.action_dtype)]), "an array of one dimension"),
    "negative stage": (
        lambda: Program([np.array([(0, 0, 0, 0, -1, 0, 0)], millrace.action_dtype)]), "negative number"),
    "unknown op": (
        lambda: Program([np.array([(99, 0, 0, 0, 0, 0, 0)], millrace.action_dtype)]), "unknown op"),
    "transport": (lambda: millrace.generate("1f1b").verify(transport="pigeon"), "^transport is 'pigeon'"),
    "limits": (lambda: millrace.generate("1f1b").verify(memory_limit=[1, 2]), "^memory_limit has 2 values"),
    "objective": (lambda: millrace.search(2, 2, objective="speed"), "^objective is 'speed'; known are"),
    "search option": (lambda: millrace.search(2, 2, speed=1), "^search has no option 'speed'; known are"),
    "search value": (lambda: millrace.search(2, 2, budget="many"), "^budget is 'many'"),
    "recompute": (lambda: millrace.generate("1f1b").insert_recompute("some"), "some"),
    "sweep count": (lambda: millrace.sweep(["1f1b"], ranks=[2, 0]), "ranks"),
    "sweep whole": (lambda: millrace.sweep(["1f1b"], ranks=[2.5]), "^ranks holds a float; expected whole numbers"),
    "compare option": (
        lambda: millrace.compare(["1f1b", "zb-h1"], waves=2), "^waves was given, but none of the schedules takes it"),
    "sweep program": (
        lambda: millrace.sweep([millrace.generate("1f1b")]),
        "^sweep takes names of schedules, got the program '1f1b p=4 m=8', which has counts of its own; compare"),
    "sweep thing": (lambda: millrace.sweep([3]), "^sweep takes names of schedules, got a int$"),
    "sweep nothing": (lambda: millrace.sweep(3), "^sweep takes names of schedules, got a int$"),
    "keyword": (lambda: millrace.sweep("1f1b", rank=4), "^sweep has no argument 'rank'; did you mean 'ranks'?"),
    "keyword of a method": (
        lambda: millrace.generate("1f1b").verify(transprot=1),
        r"^Program.verify has no argument 'transprot'; did you mean 'transport'\?$"),
    "keyword of a static method": (
        lambda: Program.read("x.csv", old_leters=True), "^Program.read has no argument 'old_leters'; did you mean 'old_letters'"),
    "keyword of a constructor": (
        lambda: millrace.Shape(2, 2, slice=1), r"^Shape has no argument 'slice'; did you mean 'slices'\?$"),
    "type": (lambda: millrace.gallery("4"), "^gallery: ranks is '4', a str; expected int$"),
    "missing": (lambda: millrace.generate(), "^generate needs 'name'$"),
    "too many": (
        lambda: millrace.gallery(1, 2, 3), r"^gallery takes \(ranks, micro_batches\), got 3 arguments without a name$"),
    "optimizer": (lambda: millrace.AdamW(lr=1e-3), r"^the optimizer adamw has no argument 'lr'; did you mean 'learning_rate'\?$"),
    "betas": (lambda: millrace.Adam(betas=(0.9, 0.99)), r"no argument 'betas'; did you mean 'beta1 and beta2'\?$"),
    "momentum": (lambda: millrace.Sgd(1e-3, momentum=0.9), "^the optimizer sgd has no argument 'momentum'; did you mean"),
    "rate": (lambda: millrace.AdamW("fast"), "^the optimizer adamw: learning_rate is 'fast', a str; expected a number$"),
    "compare thing": (lambda: millrace.compare([3]), "^a schedule to compare is a name or a millrace.Program$"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_is_refused_in_one_sentence(case):
    call, sentence = REFUSED[case]
    with pytest.raises(InvalidArgument) as refused:
        call()
    assert re.search(sentence, str(refused.value)), refused.value
    assert "\n" not in str(refused.value)


def test_the_command_says_the_same_with_its_flags(command):
    said = command.sentence("simulate", "1f1b", "--f", "1,2,3")
    with pytest.raises(InvalidArgument) as refused:
        millrace.generate("1f1b").simulate({"forward": [1, 2, 3]})
    assert said == str(refused.value).replace("forward", "--f")


def test_a_truth_value_that_is_none_is_refused():
    rows = np.zeros(1, millrace.action_dtype)
    rows.view(np.uint8)[1] = 7
    with pytest.raises(InvalidArgument, match="neither true nor false"):
        Program([rows])


def test_every_fault_of_a_text_is_told_with_its_place(tmp_path):
    with pytest.raises(millrace.DataError) as refused:
        Program.from_csv("0F0,0Q0\n1F0,1BW0\n")
    assert str(refused.value).splitlines()[0].startswith("1:6: unknown action 'Q'")
    assert str(refused.value).splitlines()[1].endswith("(old_letters=True)")
    path = tmp_path / "bad.json"
    path.write_text('{"millrace_plan": 7}')
    with pytest.raises(millrace.DataError, match=f"^{path}:1:19: "):
        Program.read(path)
    with pytest.raises(millrace.DataError, match="costs"):
        millrace.generate("1f1b").simulate(path)


def test_a_file_and_a_list_do_not_say_the_same_thing(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text('{"millrace_costs": 1, "unit": "s", "ranks": 1, "chunks": 1, '
                    '"forward": [1], "input": [1], "weight": [1]}')
    with pytest.raises(InvalidArgument, match="^forward was given, but costs .* has it too"):
        millrace.Costs(file=path, forward=1)


def test_nothing_is_pickled():
    for thing in (millrace.generate("1f1b"), millrace.Costs(), millrace.Shape(1, 1)):
        with pytest.raises(TypeError):
            pickle.dumps(thing)
