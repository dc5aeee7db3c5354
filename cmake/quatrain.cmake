# Flags and helpers shared by every target.

add_library(quatrain_flags INTERFACE)
# Quantisers need IEEE arithmetic: identical FP32 input must give identical codes on every backend.
target_compile_options(quatrain_flags INTERFACE -Wall -Wextra -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 warns of overlaps inside its own std::string (bug 105651) and of "uninitialized" AVX-512 intrinsics (105593)
  target_compile_options(quatrain_flags INTERFACE -Wno-restrict -Wno-uninitialized -Wno-maybe-uninitialized)
endif()
target_include_directories(quatrain_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
if(QUATRAIN_SANITIZE)
  target_compile_options(quatrain_flags INTERFACE
    -fsanitize=${QUATRAIN_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(quatrain_flags INTERFACE -fsanitize=${QUATRAIN_SANITIZE})
endif()

# quatrain_library(NAME [LINKS target...] [EXCEPT source...]): the static library of one layer, from every .cpp under its
# folder.
function(quatrain_library name)
  cmake_parse_arguments(ARG "" "" "LINKS;EXCEPT" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cpp)
  foreach(source ${ARG_EXCEPT})
    list(REMOVE_ITEM sources ${CMAKE_CURRENT_SOURCE_DIR}/${source})
  endforeach()
  if(NOT sources)  # a layer that has headers only so far
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE quatrain_flags ${ARG_LINKS})
    return()
  endif()
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC quatrain_flags ${ARG_LINKS})
endfunction()

# quatrain_test(FOLDER LINKS target... [LABELS label...]): one test program of every *_test.cpp under tests/FOLDER.
# Tests run in tests/FOLDER; QUATRAIN_SHARED names the folder of large fixtures, tests that need it skip without it.
function(quatrain_test folder)
  cmake_parse_arguments(ARG "" "" "LINKS;LABELS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cpp)
  if(NOT sources)
    return()
  endif()
  set(name ${folder}_test)
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE ${ARG_LINKS} GTest::gtest GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE
    QUATRAIN_SOURCE_DIR="${CMAKE_SOURCE_DIR}" QUATRAIN_BINARY_DIR="${CMAKE_BINARY_DIR}")
  include(GoogleTest)
  gtest_discover_tests(${name} TEST_PREFIX "${folder}/" DISCOVERY_MODE PRE_TEST
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/${folder}
    PROPERTIES LABELS "${folder};${ARG_LABELS}" TIMEOUT 600)
endfunction()
