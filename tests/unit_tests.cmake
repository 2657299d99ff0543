# Read by ctest when it starts. gtest_discover_tests() makes a process of every case of a TEST_P, of which there are
# thousands, and most take less time than their process does to begin. Here all cases of one are a test of ctest, whose output
# names the one that failed.

# Of each program, what takes about a second or more: it goes through every cut or number of threads, or by the clock. Its
# label is `sweeps`.
set(sweeps_of_base_tests
  Kinds/TransferQueues.BringBackWhatTheyTookAway Progress.ATerminalShowsItAfterAWhileAndClearsIt Progress.WhatIsWaitedForIsNamed
  Progress.ADumbTerminalGetsNoEscapes Progress.APipeGetsNothing)
set(sweeps_of_tensor_tests Types/FastMatmulOp.HasTheSameBitsForAnyNumberOfThreads)
set(sweeps_of_parallel_tests Ways/CpAttention.IsThatOfOneRank)
set(sweeps_of_data_tests
  Parts.GiveTheBytesOfOneProcessWhereverTheyAreCut Preprocess.WorkersDoNotChangeTheResult Types/TokenizerTypes.TrainingIsReproducible)
set(sweeps_of_checkpoint_tests Lock.OneOfManyThatTryAtOnceGetsIt)
set(sweeps_of_megatron_cpp_tests
  SharedIndex.ALongBuildIsNoHangAndWhoWaitsSleeps Bench.GemmsAreThoseOfAStep Bench.StepShowsTheMemoryOfTheStepAlone
  Bench.StepHasRatesThatAgreeWithItsTime)

# mcpp_add_unit_tests(<program> <filter> [<property> <value> ...]): its tests, or those of the filter if that is not "".
function(mcpp_add_unit_tests program filter)
  if(filter)
    set(filter --gtest_filter=${filter})
  endif()
  execute_process(COMMAND ${program} --gtest_list_tests ${filter} OUTPUT_VARIABLE lines RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${program} cannot list its tests: ${result}")
  endif()
  string(REGEX REPLACE "[ \t]*#[^\n]*" "" lines "${lines}")  # the values of parameters
  string(REPLACE "\n" ";" lines "${lines}")
  set(names "")
  foreach(line ${lines})
    if(line MATCHES "^  ([^/]+)(/?)")
      set(name ${suite}.${CMAKE_MATCH_1})
      if(CMAKE_MATCH_2)
        set(cases_of_${name} "/*")
      endif()
      list(APPEND names ${name})
    elseif(line MATCHES "^([^ ]+)\\.$")
      set(suite ${CMAKE_MATCH_1})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES names)
  get_filename_component(short ${program} NAME)
  foreach(name ${sweeps_of_${short}})
    list(FIND names ${name} place)
    if(place EQUAL -1)
      message(FATAL_ERROR "unit_tests.cmake names ${name}, which ${short} has not")
    endif()
  endforeach()
  foreach(name ${names})
    set(label unit)
    list(FIND sweeps_of_${short} ${name} place)
    if(NOT place EQUAL -1)
      set(label sweeps)
    endif()
    add_test(${name} ${program} --gtest_filter=${name}${cases_of_${name}})
    # Skipped are those of which no case ran; the last line tells them from those of which some failed.
    set_tests_properties(${name} PROPERTIES
      SKIP_REGULAR_EXPRESSION "  PASSED  \\] 0 tests\\.\n(\\[  SKIPPED \\] [^\n]*\n)+$" LABELS ${label} ${ARGN})
  endforeach()
endfunction()
