# The CUDA part (-DQUATRAIN_CUDA=ON): operators, their tests and benchmarks. nvcc 13 is needed, a GPU only to run.
set(CMAKE_CUDA_ARCHITECTURES 90a)
if(NOT CMAKE_CUDA_COMPILER)
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS /usr/local/cuda/bin /usr/local/cuda-13.0/bin)
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know nvcc's flag
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
find_package(CUDAToolkit 13 REQUIRED)

add_subdirectory(src/ops/cuda)
