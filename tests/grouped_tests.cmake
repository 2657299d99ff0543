# Included by ctest when it starts. gtest_discover_tests() starts a process for every case of a TEST_P, of which there
# are thousands. Most take less time than the start of their process, and layouts are compared with a reference run that
# the cases of a process share. Therefore, several cases of one TEST_P form one ctest test, whose output names the
# failed case.

# ctest starts with the tests of the highest COST and has no times on a fresh clone. The longest tests must not come
# last, when nothing else is left to run in parallel. Tests without a COST get the seconds of their last run, which are
# fewer.
set(cost_of_multi_node 4000)
set(cost_of_end_to_end 3000)
set(cost_of_layouts 2000)
set(cost_of_planning 2000)
set(cost_of_sweeps 1000)
set(cost_of_unit 0)
set(cost_of_cuda 0)

# Tests of each program that take about a second or more, because they try all shardings or thread counts or really
# wait. Their label is `sweeps`.
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
  SharedIndexTest.LongBuildIsNotReportedAsHangAndWaitingRanksSleep BenchTest.GemmsAddUpToFlopsOfStep
  BenchTest.StepMemoryExcludesPeakMeasurement BenchTest.StepRatesMatchItsTime)

# mcpp_add_grouped_tests(<program> <label> <max_cases> <filter> [<property> <value> ...]): adds the program's tests that
# match the filter ("" = all), with up to <max_cases> cases in a process. Label `unit` is `sweeps` for the tests above.
function(mcpp_add_grouped_tests program label max_cases filter)
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
    list(FIND names ${name} index)
    if(index EQUAL -1)
      message(FATAL_ERROR "grouped_tests.cmake names ${name}, which ${short} does not contain")
    endif()
  endforeach()
  foreach(name ${names})
    set(label_of_test ${label})
    list(FIND sweeps ${name} index)
    if(NOT index EQUAL -1)
      set(label_of_test sweeps)
    endif()
    list(LENGTH cases_of_${name} count)
    math(EXPR last "${count} - 1")
    foreach(begin RANGE 0 ${last} ${max_cases})
      list(SUBLIST cases_of_${name} ${begin} ${max_cases} cases)
      set(test ${name})
      if(count GREATER max_cases)
        list(LENGTH cases length)
        math(EXPR first "${begin} + 1")
        math(EXPR end "${begin} + ${length}")
        string(APPEND test "/cases_${first}-${end}")
        list(JOIN cases ":" cases)
      elseif(NOT cases STREQUAL name)
        set(cases "${name}/*")
      endif()
      add_test(${test} ${program} --gtest_filter=${cases})
      # A test is skipped if none of its cases ran; the last line distinguishes this from failed cases.
      set_tests_properties(${test} PROPERTIES
        SKIP_REGULAR_EXPRESSION "  PASSED  \\] 0 tests\\.\n(\\[  SKIPPED \\] [^\n]*\n)+$" LABELS ${label_of_test}
        COST ${cost_of_${label_of_test}} ${ARGN})
    endforeach()
  endforeach()
endfunction()
