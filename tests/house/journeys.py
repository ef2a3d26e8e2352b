# Two journeys through the library, as gdb sees them in the AddressSanitizer build: which source files lie between
# their ends. journeys.sh runs this in gdb; the variable $journey is "action" or "tensor".
import re

import gdb

ROOT = gdb.convenience_variable("root").string() + "/"
EXECUTOR = r"scheduler/run/\w*executor\.cpp"


def frames_here(function, last):
    """Files of the library from `function`, where the program stands, to the first file that `last` matches."""
    frame, found, begun = gdb.newest_frame(), [], False
    while frame:
        begun = begun or function in (frame.name() or "")
        symbols = frame.find_sal().symtab
        path = symbols.fullname().removeprefix(ROOT) if symbols else ""
        if begun and re.match(r"(scheduler|stages|training|transport|core|include)/", path):
            found.append(path)
            if re.fullmatch(last, path):
                return found
        frame = frame.older()
    raise gdb.GdbError(f"{function}: no frame in {last}")


def stop_at(place, same_thread=False):
    """Runs on until `place` is reached, by any thread or by the one that stands now."""
    thread = f" thread {gdb.selected_thread().num}" if same_thread else ""
    gdb.execute(f"tbreak {place}{thread}", to_string=True)
    gdb.execute("continue" if gdb.selected_thread() else "run", to_string=True)
    if not gdb.selected_thread():
        raise gdb.GdbError(f"{place} was not reached")


def action():
    """From the generator of its schedule, over the executor that is made of it, to a matrix product."""
    found = []
    for place, last in (
        ("millrace::generators::phase_program", r"training/trainer\.cpp"),
        ("millrace::make_executor", r"training/trainer\.cpp"),
        ("eigen::multiply", EXECUTOR),
    ):
        stop_at(place)
        found += frames_here(place, last)
    return found


def tensor():
    """From the forward pass of its stage, over its sending, to the mailbox of another rank over shared memory."""
    stop_at("millrace::shared_memory::RegionLoop::RegionLoop")  # what came before was the reference of the test
    stop_at("millrace::StageModule::forward")
    found = frames_here("forward", EXECUTOR)
    stop_at("millrace::Interpreter::State::send")
    stop_at("millrace::shared_memory::RingWriter::put", same_thread=True)
    found += frames_here("RingWriter::put", EXECUTOR)
    stop_at("millrace::MessageQueue::put")
    return found + frames_here("MessageQueue::put", r"transport/shared_memory/region_loop\.cpp")


for setting in ("breakpoint pending on", "print thread-events off", "pagination off", "confirm off"):
    gdb.execute("set " + setting)
journey = {"action": action, "tensor": tensor}[gdb.convenience_variable("journey").string()]
for path in sorted(set(journey())):
    print("journey:", path)
gdb.execute("kill")
