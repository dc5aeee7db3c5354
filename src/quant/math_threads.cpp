#include "quant/math_threads.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <malloc.h>

namespace quatrain {
namespace {

// OpenBLAS has threads of its own, which libtorch does not set; nullptr with another BLAS.
template <typename Function>
Function* blas_function(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

}  // namespace

OneMathThread::OneMathThread() : torch_threads_(at::get_num_threads()) {
  at::set_num_threads(1);
  const auto get = blas_function<int()>("openblas_get_num_threads");
  const auto set = blas_function<void(int)>("openblas_set_num_threads");
  if (get == nullptr || set == nullptr) return;
  blas_threads_ = get();
  set(1);
}

OneMathThread::~OneMathThread() {
  at::set_num_threads(torch_threads_);
  if (blas_threads_ > 0) blas_function<void(int)>("openblas_set_num_threads")(blas_threads_);
}

void keep_freed_memory() {
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that glibc takes
  ::mallopt(M_TRIM_THRESHOLD, 256 << 20);
  ::mallopt(M_TOP_PAD, 16 << 20);
}

void return_freed_memory() {
  ::malloc_trim(0);
}

}  // namespace quatrain
