# Paths of sources in the program (__FILE__) depend neither on the folders of the clone and of the build nor on ccache,
# which passes relative paths to the compiler: they are those relative to build/<preset>. Builds of one commit with the
# same compiler and libraries are therefore identical, as scripts/check_reproducible.sh verifies.
set(mapped_path ../../)
cmake_path(RELATIVE_PATH CMAKE_SOURCE_DIR BASE_DIRECTORY ${CMAKE_BINARY_DIR} OUTPUT_VARIABLE relative_path)
foreach(path ${CMAKE_SOURCE_DIR} ${relative_path})
  if(NOT "${path}/" STREQUAL mapped_path)
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${path}/=${mapped_path}>")
  endif()
endforeach()
