# The CUDA backend compiled by the host compiler against the toolkit's headers, and linked with tests/cuda_simulator
# instead of CUDA's libraries. Needs neither nvcc nor a GPU.
set(MCPP_CUDA_INCLUDE_DIRS "/usr/local/cuda/include" CACHE STRING "Folders of the CUDA headers, for the simulator")
set(cuda_include_folders ${CMAKE_SOURCE_DIR}/tests/cuda_simulator/include)
set(missing_headers "")
foreach(header cuda_runtime.h cuda_fp8.h cublasLt.h cudnn.h nccl.h nvtx3/nvToolsExt.h)
  string(MAKE_C_IDENTIFIER "MCPP_DIR_OF_${header}" folder)
  find_path(${folder} ${header} HINTS ${MCPP_CUDA_INCLUDE_DIRS})
  mark_as_advanced(${folder})
  if(${folder})
    list(APPEND cuda_include_folders ${${folder}})
  else()
    list(APPEND missing_headers ${header})
  endif()
endforeach()
if(missing_headers)
  list(JOIN missing_headers ", " missing_headers)
  message(FATAL_ERROR "the preset cuda-sim needs the CUDA headers: ${missing_headers} not found below ${MCPP_CUDA_INCLUDE_DIRS}; "
                      "install CUDA, cuDNN and NCCL for development, or name their folders in MCPP_CUDA_INCLUDE_DIRS")
endif()
list(REMOVE_DUPLICATES cuda_include_folders)
set(cuda_libraries mcpp_cuda_simulator)
set(cuda_comm_libraries "")

# Kernels are compiled as C++ and instrumented, so that the simulator detects every access to memory and integer
# overflow. nvcc checks their warnings.
set(cuda_kernel_options -xc++ -include ${CMAKE_SOURCE_DIR}/tests/cuda_simulator/include/kernel_language.h
    -fsanitize=thread,signed-integer-overflow --param=tsan-instrument-func-entry-exit=0 -ffp-contract=off -w)

file(GLOB simulator_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/cuda_simulator/*.cpp)
add_library(mcpp_cuda_simulator STATIC ${simulator_sources})
target_include_directories(mcpp_cuda_simulator PUBLIC ${CMAKE_SOURCE_DIR} PRIVATE ${cuda_include_folders})
target_compile_options(mcpp_cuda_simulator PRIVATE -Wall -Wextra -Werror -O3 -ffp-contract=off)
