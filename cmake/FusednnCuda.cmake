# Defines the target fusednn_cuda: the CUDA half, or csrc/cuda/stub.cpp where it is not built.
set(fusednn_have_cuda OFF)
if(NOT FUSEDNN_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "FUSEDNN_CUDA must be AUTO, ON or OFF, not '${FUSEDNN_CUDA}'")
endif()
if(NOT FUSEDNN_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  include(cmake/FusednnNvcc.cmake)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    # Before enable_language, which would otherwise take the compiler's default. sm_80 also runs on
    # 8.6 and 8.9; from the PTX that 90 brings besides its machine code, a driver makes code for
    # later GPUs.
    set(CMAKE_CUDA_ARCHITECTURES "80-real;90")
  endif()
  fusednn_find_nvcc()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(fusednn_have_cuda ON)
  elseif(FUSEDNN_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FUSEDNN_CUDA=ON, but no CUDA compiler was found; set CUDACXX, add nvcc to "
      "PATH, or let pip bring one with FUSEDNN_NVCC=pypi")
  else()
    message(STATUS "No CUDA compiler found: building the CPU half only")
  endif()
endif()

if(fusednn_have_cuda)
  file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS csrc/cuda/*.cu)
  add_library(fusednn_cuda OBJECT ${cuda_sources})
  set_target_properties(fusednn_cuda PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
    CUDA_VISIBILITY_PRESET hidden CUDA_RUNTIME_LIBRARY Static)
  target_compile_options(fusednn_cuda PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-Xfatbin=-compress-all --compress-mode=size -Xcompiler=-Wall>)
  target_link_libraries(fusednn_cuda PUBLIC CUDA::cudart_static)
  # Made before the architectures were known; it holds no CUDA sources, and is asked for them all the
  # same.
  set_property(TARGET fusednn_host PROPERTY CUDA_ARCHITECTURES OFF)
else()
  add_library(fusednn_cuda OBJECT csrc/cuda/stub.cpp)
  target_link_libraries(fusednn_cuda PRIVATE fusednn_flags)
endif()
target_include_directories(fusednn_cuda PRIVATE csrc)
target_link_libraries(fusednn_host PUBLIC $<TARGET_OBJECTS:fusednn_cuda>)
