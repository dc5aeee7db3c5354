// Who uses the cores: this program's loops over samples and rows, or libtorch and its BLAS.
#pragma once

namespace quatrain {

/// While it lives, libtorch and its BLAS run on the thread that calls them: samples and rows are what runs in
/// parallel, nothing waits inside a product, and results do not depend on the number of threads.
class OneMathThread {
 public:
  OneMathThread();
  ~OneMathThread();
  OneMathThread(const OneMathThread&) = delete;
  OneMathThread& operator=(const OneMathThread&) = delete;

 private:
  int torch_threads_, blas_threads_ = 0;
};

/// Freed memory stays with the process for the next temporaries of the same sizes, instead of being handed
/// back and zeroed again for each of them.
void keep_freed_memory();

/// All freed memory goes back to the system now: where what is kept lies between temporaries of other sizes,
/// they would find no room and the process would grow.
void return_freed_memory();

}  // namespace quatrain
