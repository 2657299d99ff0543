# Read by ctest when it starts. gtest_discover_tests() makes a process of every case of a TEST_P, of which there are
# thousands: most take less time than their process does to begin, and layouts of ranks are compared with a run of one rank,
# which cases in a process share. Here cases of one TEST_P are a test of ctest, whose output names the one that failed.

# ctest begins with the tests of the highest COST, and knows no times on a fresh clone: what takes longest must not come last,
# when nothing is left to run beside it. What has no COST of its own gets the seconds that it took last, which are fewer.
set(cost_of_multi_node 4000)
set(cost_of_end_to_end 3000)
set(cost_of_layouts 2000)
set(cost_of_planning 2000)
set(cost_of_sweeps 1000)
set(cost_of_unit 0)
set(cost_of_cuda 0)

# Of each program, what takes about a second or more: it goes through every cut or number of threads, or by the clock. Its
# label is `sweeps`.
set(sweeps_of_base_tests
  Kinds/TransferQueueTest.ReadsBackWrittenBytesWithManyTransfersInFlight ProgressTest.PipeReceivesNothing
  ProgressTest.TerminalShowsBarAfterDelayAndClearsIt ProgressTest.WaitIndicatorShowsItsNameOnTerminal
  ProgressTest.DumbTerminalReceivesNoEscapes)
set(sweeps_of_tensor_tests Types/FastMatmulTest.IsBitwiseIdenticalForAnyThreadCount)
set(sweeps_of_parallel_tests Variants/ContextParallelAttentionTest.MatchesSingleRank)
set(sweeps_of_data_tests
  PreprocessPartsTest.OutputIsBitwiseIdenticalForAnySplit PreprocessTest.ResultIsIndependentOfWorkers
  Types/TokenizerTypesTest.TrainingIsReproducible)
set(sweeps_of_checkpoint_tests FolderLockTest.GrantsLockToOneOfManyContenders)
set(sweeps_of_megatron_cpp_tests
  SharedIndex.ALongBuildIsNoHangAndWhoWaitsSleeps Bench.GemmsAreThoseOfAStep Bench.StepShowsTheMemoryOfTheStepAlone
  Bench.StepHasRatesThatAgreeWithItsTime)

# mcpp_add_grouped_tests(<program> <label> <most> <filter> [<property> <value> ...]): its tests, or those of the filter if
# that is not "", with up to <most> cases in a process. Label `unit` is `sweeps` for those named above.
function(mcpp_add_grouped_tests program label most filter)
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
    if(line MATCHES "^  ([^/]+)(/?.*)")
      set(name ${suite}.${CMAKE_MATCH_1})
      list(APPEND names ${name})
      list(APPEND cases_of_${name} ${name}${CMAKE_MATCH_2})
    elseif(line MATCHES "^([^ ]+)\\.$")
      set(suite ${CMAKE_MATCH_1})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES names)
  get_filename_component(short ${program} NAME)
  if(label STREQUAL unit)
    set(sweeps ${sweeps_of_${short}})
  endif()
  foreach(name ${sweeps})
    list(FIND names ${name} place)
    if(place EQUAL -1)
      message(FATAL_ERROR "grouped_tests.cmake names ${name}, which ${short} has not")
    endif()
  endforeach()
  foreach(name ${names})
    set(label_of_test ${label})
    list(FIND sweeps ${name} place)
    if(NOT place EQUAL -1)
      set(label_of_test sweeps)
    endif()
    list(LENGTH cases_of_${name} count)
    math(EXPR last "${count} - 1")
    foreach(begin RANGE 0 ${last} ${most})
      list(SUBLIST cases_of_${name} ${begin} ${most} cases)
      set(test ${name})
      if(count GREATER most)
        list(LENGTH cases length)
        math(EXPR first "${begin} + 1")
        math(EXPR end "${begin} + ${length}")
        string(APPEND test "/cases_${first}-${end}")
        list(JOIN cases ":" cases)
      elseif(NOT cases STREQUAL name)
        set(cases "${name}/*")
      endif()
      add_test(${test} ${program} --gtest_filter=${cases})
      # Skipped are those of which no case ran; the last line tells them from those of which some failed.
      set_tests_properties(${test} PROPERTIES
        SKIP_REGULAR_EXPRESSION "  PASSED  \\] 0 tests\\.\n(\\[  SKIPPED \\] [^\n]*\n)+$" LABELS ${label_of_test}
        COST ${cost_of_${label_of_test}} ${ARGN})
    endforeach()
  endforeach()
endfunction()
