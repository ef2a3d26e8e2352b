// One thread for whatever PyTorch multiplies. libgomp counts threads per calling thread, OpenBLAS
// for the process; both counts change bits, and both would fight with the executor's threads.
#pragma once

namespace millrace::on_torch {

/// Sets both counts to 1 for the calling thread, if they are not. Cost: nanoseconds when they are.
void use_one_thread();

}  // namespace millrace::on_torch
