# Chooses the CUDA compiler before check_language(CUDA) looks for one:
#
#   1. CMAKE_CUDA_COMPILER or $CUDACXX, if given
#   2. nvcc of the package nvidia-cuda-nvcc in the Python environment that builds
#   3. what check_language(CUDA) finds in PATH and the usual places
#
# The packages' folder (site-packages/nvidia/cu13) has lib/ where nvcc's own settings say lib64/, and
# libcudart.so.13 without the link libcudart.so that FindCUDAToolkit wants. Both are answered here,
# for whichever nvcc lies in such a folder, and nothing is written into it.
function(fusednn_find_nvcc)
  if(CMAKE_CUDA_COMPILER)
    set(nvcc "${CMAKE_CUDA_COMPILER}")
  elseif(DEFINED ENV{CUDACXX})
    set(nvcc "$ENV{CUDACXX}")
  else()
    find_package(Python 3.11 QUIET COMPONENTS Interpreter)
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -c "
from importlib.util import find_spec
from pathlib import Path
try:
    found = find_spec('nvidia.cu13')
except ModuleNotFoundError:
    found = None
folders = found.submodule_search_locations if found else ()
print(next((str(Path(one)) for one in folders if (Path(one) / 'bin' / 'nvcc').exists()), ''))
"
      OUTPUT_VARIABLE root OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT root)
      return()
    endif()
    set(nvcc "${root}/bin/nvcc")
    set(ENV{CUDACXX} "${nvcc}")
  endif()
  get_filename_component(root "${nvcc}" DIRECTORY)
  get_filename_component(root "${root}" DIRECTORY)
  if(EXISTS "${root}/lib/libcudart_static.a" AND NOT EXISTS "${root}/lib64")
    set(ENV{LIBRARY_PATH} "${root}/lib:$ENV{LIBRARY_PATH}")  # the compiler checks link with cudart
    file(GLOB cudart "${root}/lib/libcudart.so*")
    if(cudart AND NOT CUDA_CUDART)
      list(GET cudart 0 cudart)
      set(CUDA_CUDART "${cudart}" CACHE FILEPATH "cudart of the CUDA packages")
    endif()
    message(STATUS "CUDA compiler from Python packages: ${root}")
  endif()
endfunction()
