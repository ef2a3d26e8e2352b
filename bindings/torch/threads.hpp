// As many threads for whatever PyTorch multiplies as a rank has. libgomp counts threads per calling
// thread, OpenBLAS for the process; both counts change bits, and both would fight with the
// executor's threads.
#pragma once

namespace millrace::on_torch {

/// Sets both counts for the calling thread, if they are others. Cost: nanoseconds when they are
/// not.
void use_threads(int count);

}  // namespace millrace::on_torch
