# Enables the CUDA language and finds its libraries. nvcc of the toolkit need not be in PATH.
if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
  set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
endif()
set(CMAKE_CUDA_ARCHITECTURES ${MCPP_CUDA_ARCHITECTURES})
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc supports C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
find_package(CUDAToolkit REQUIRED)

# Not all packages of cuDNN and NCCL contain CMake files.
foreach(library cudnn nccl)
  string(TOUPPER ${library} name)
  find_path(${name}_INCLUDE_DIR ${library}.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(${name}_LIBRARY ${library} HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(NOT ${name}_INCLUDE_DIR OR NOT ${name}_LIBRARY)
    message(FATAL_ERROR "${library} was not found in the CUDA toolkit or default paths; install it, or build without MCPP_CUDA")
  endif()
endforeach()

# Files and folders, used only for sources below cuda/, instead of targets. All other sources then compile as without
# CUDA and are found in ccache.
set(cuda_include_folders ${CUDAToolkit_INCLUDE_DIRS} ${CUDNN_INCLUDE_DIR} ${NCCL_INCLUDE_DIR})
list(REMOVE_DUPLICATES cuda_include_folders)
set(cuda_libraries ${CUDA_cudart_LIBRARY} ${CUDA_cublasLt_LIBRARY} ${CUDNN_LIBRARY})
set(cuda_comm_libraries ${NCCL_LIBRARY})
