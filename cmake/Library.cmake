# Static libraries mcpp_<name>, each built from all sources below <name>/. Sources in folders named cuda/ are built with
# MCPP_CUDA only.

add_library(mcpp_options INTERFACE)
target_include_directories(mcpp_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(mcpp_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror>
  # In a unity build GCC treats sources like headers, whose types must not use an unnamed namespace.
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:$<$<BOOL:${MCPP_UNITY_BUILD}>:-Wno-subobject-linkage>>
  # Contraction would make results depend on the compiler; kernels use explicit fused multiply-adds.
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
# Kernels call constexpr functions of the host, such as the random numbers.
target_compile_options(mcpp_options INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror>)
if(MCPP_SANITIZE)
  # Sanitizer code causes false positives in GCC's own <regex> and intrinsics.
  target_compile_options(mcpp_options INTERFACE -fsanitize=${MCPP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
                         -Wno-maybe-uninitialized -Wno-uninitialized)
  target_link_options(mcpp_options INTERFACE -fsanitize=${MCPP_SANITIZE})
endif()

# mcpp_add_library(<name> [PROGRAM] [USES library ...] [LIBRARIES target ...]) PROGRAM: <name>/main.cpp becomes the
# executable <name>; the other sources are still a library, so that tests can link it.
function(mcpp_add_library name)
  cmake_parse_arguments(ARG "PROGRAM" "" "USES;LIBRARIES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${name}/*.cpp)
  list(TRANSFORM sources REPLACE "^${CMAKE_SOURCE_DIR}/" "")  # the path above the sources may contain "/cuda/"
  list(FILTER sources EXCLUDE REGEX "/cuda/|/main\\.cpp$")
  mcpp_unity_sources(mcpp_${name} sources 12 ${sources})
  if(MCPP_CUDA)
    file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${name}/cuda/*.cpp ${CMAKE_SOURCE_DIR}/${name}/cuda/*.cu)
    list(APPEND sources ${cuda_sources})
    set_source_files_properties(${cuda_sources} PROPERTIES INCLUDE_DIRECTORIES "${cuda_include_folders}")
    if(MCPP_CUDA_SIMULATOR)
      set(kernel_sources ${cuda_sources})
      list(FILTER kernel_sources INCLUDE REGEX "\\.cu$")
      set_source_files_properties(${kernel_sources} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "${cuda_kernel_options}")
    endif()
  endif()
  if(sources)
    add_library(mcpp_${name} STATIC ${sources})
    set(scope PUBLIC)
  else()
    add_library(mcpp_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  list(TRANSFORM ARG_USES PREPEND mcpp_)
  target_link_libraries(mcpp_${name} ${scope} mcpp_options ${ARG_USES} ${ARG_LIBRARIES})
  if(ARG_PROGRAM AND EXISTS ${CMAKE_SOURCE_DIR}/${name}/main.cpp)
    add_executable(${name} ${name}/main.cpp)
    target_link_libraries(${name} PRIVATE mcpp_${name})
  endif()
endfunction()
