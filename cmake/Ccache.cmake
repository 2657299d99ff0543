# Uses ccache if it is installed. Paths are relative to the sources, and the build folder and the path maps
# (PathMaps.cmake), which only depend on the folder, are not part of the hash, so that all clones of the project share
# results.
find_program(CCACHE ccache)
if(CCACHE)
  set(compiler_launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
                        CCACHE_IGNOREOPTIONS=-fmacro-prefix-map=* ${CCACHE})
  foreach(language C CXX CUDA)
    set(CMAKE_${language}_COMPILER_LAUNCHER ${compiler_launcher})
  endforeach()
endif()
