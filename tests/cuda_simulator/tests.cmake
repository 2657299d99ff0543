# Tests on simulated GPUs, with the label cuda-sim: those of the simulator, and those of the project whose names contain
# cuda. A label cuda-sim-fast has a part of them for every push.
set(simulator_tests cuda_simulator/tests/simulator_test.cpp cuda_simulator/tests/defects.cu)
set_source_files_properties(${simulator_tests} PROPERTIES INCLUDE_DIRECTORIES "${cuda_include_folders}")
set_source_files_properties(cuda_simulator/tests/defects.cu PROPERTIES LANGUAGE CXX
                            COMPILE_OPTIONS "${cuda_kernel_options}")
add_executable(cuda_simulator_tests ${simulator_tests})
target_link_libraries(cuda_simulator_tests PRIVATE mcpp_tensor GTest::gtest GTest::gtest_main GTest::gmock)

# mcpp_simulate(<program> <label> <name> <filter> [<variable>=<value> ...]): the tests of the filter as one test per suite.
function(mcpp_simulate program label name filter)
  add_test(NAME cuda_sim.${name} COMMAND ${program} --gtest_filter=${filter})
  set_tests_properties(cuda_sim.${name} PROPERTIES LABELS "${label}" TIMEOUT 3000 ENVIRONMENT "${ARGN}"
                       ENVIRONMENT_MODIFICATION OMP_WAIT_POLICY=set:passive)
endfunction()
