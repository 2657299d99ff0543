# Run by cpack: sets SOURCE_DATE_EPOCH, the time of the files in the package, to that of the commit if the caller has not
# set it. Packages of one commit are then identical.
if(NOT DEFINED ENV{SOURCE_DATE_EPOCH})
  execute_process(COMMAND git -C ${CMAKE_CURRENT_LIST_DIR} log -1 --format=%ct
                  OUTPUT_VARIABLE date ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(date MATCHES "^[0-9]+$")
    set(ENV{SOURCE_DATE_EPOCH} ${date})
  endif()
endif()
