# Compilers behind ccache, where it is installed. Paths are told to it as seen from the build folder, and the name of that
# folder is no part of what it looks for: so every clone of the project finds what another has compiled.
find_program(CCACHE ccache)
if(CCACHE)
  set(compiler_launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
  foreach(language C CXX CUDA)
    set(CMAKE_${language}_COMPILER_LAUNCHER ${compiler_launcher})
  endforeach()
endif()
