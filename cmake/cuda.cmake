# The CUDA part (-DQUATRAIN_CUDA=ON): operators, their tests and benchmarks. nvcc 13 is needed, a GPU only to run.
set(CMAKE_CUDA_ARCHITECTURES 90a)
set(CMAKE_CUDA_STANDARD 17)  # CMake 3.25 knows no flag for CUDA's C++20: the targets pass it
if(NOT CMAKE_CUDA_COMPILER)
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS /usr/local/cuda/bin /usr/local/cuda-13.0/bin)
endif()
enable_language(CUDA)
find_package(CUDAToolkit 13 REQUIRED)

add_subdirectory(src/ops/cuda)
if(QUATRAIN_TESTS)
  add_subdirectory(tests/cuda)
endif()
if(QUATRAIN_BENCH)
  add_subdirectory(bench/cuda)
endif()
