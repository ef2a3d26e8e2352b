// What PyTorch's tensors leave behind, kept for the next ones.
#pragma once

namespace millrace {

/// Lets malloc keep all memory that is freed, for the whole process and until it ends: a training
/// frees what a unit held and needs as much for the next one, and glibc's defaults give it back to
/// the system in between, to be taken again page by page. A split backward gains most (README).
///
/// No other call of the library changes how a process allocates; a program makes this one at its
/// beginning, if it wants to. False where malloc is not glibc's, which knows nothing of it. Cost:
/// the process stays as large as it once was. Thread-safe.
bool keep_freed_memory();

}  // namespace millrace
