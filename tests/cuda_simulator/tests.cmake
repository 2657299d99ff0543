# Tests on simulated GPUs, with the label cuda-sim: those of the simulator, and those of the project whose names contain
# cuda. The label cuda-sim-fast selects a subset for every push.
set(simulator_tests cuda_simulator/tests/simulator_test.cpp cuda_simulator/tests/graph_test.cpp
    cuda_simulator/tests/cublaslt_test.cpp
    cuda_simulator/tests/large_index_test.cpp cuda_simulator/tests/defects.cu)
set_source_files_properties(${simulator_tests} PROPERTIES INCLUDE_DIRECTORIES "${cuda_include_folders}")
set_source_files_properties(cuda_simulator/tests/defects.cu PROPERTIES LANGUAGE CXX
                            COMPILE_OPTIONS "${cuda_kernel_options}")
add_executable(cuda_simulator_tests ${simulator_tests})
target_link_libraries(cuda_simulator_tests PRIVATE mcpp_tensor GTest::gtest GTest::gtest_main GTest::gmock)

# Step times of the program under the virtual clock.
add_executable(cuda_simulator_clock_tests cuda_simulator/tests/clock_test.cpp)
target_link_libraries(cuda_simulator_clock_tests PRIVATE mcpp_megatron_cpp mcpp_tests_build GTest::gtest GTest::gtest_main)

# mcpp_simulate(<program> <label> <name> <filter> [<variable>=<value> ...]): the tests of the filter as one test per suite.
function(mcpp_simulate program label name filter)
  add_test(NAME cuda_sim.${name} COMMAND ${program} --gtest_filter=${filter})
  set_tests_properties(cuda_sim.${name} PROPERTIES LABELS "${label}" TIMEOUT 3000 ENVIRONMENT "${ARGN}"
                       ENVIRONMENT_MODIFICATION OMP_WAIT_POLICY=set:passive)
endfunction()

set(fast cuda-sim cuda-sim-fast)
mcpp_simulate(cuda_simulator_tests "${fast}" simulator *)
mcpp_simulate(cuda_simulator_clock_tests "${fast}" clock.fast *DataParallel*:*OneFOneB*:*Graphs*:*OneLaunch*)
mcpp_simulate(cuda_simulator_clock_tests cuda-sim clock *OneRank*:*TensorParallel*:*Interleaved*)
# Every op and type, in the default order, except tests with sizes for a real GPU.
set(too_large *LongSequence*:*DeviceWaitTimer*)
foreach(suite Activation CrossEntropy Dropout Float16 Elementwise Embedding GeluEpilogue Matmul Norm Optimizer Rope Step
        Transfer AsyncCopy DeviceGraph AttentionBlocks AttentionParts AttentionSink AttentionTest
        ChunkStarts RowOps GroupedMatmul ExpertChoices PaddedOrder Routing Fp8
        CompressedMessage ParamRemainders Quantize LowRank GatedScan ShortConv GatedNorm ZLoss AttentionLogits)
  mcpp_simulate(tensor_tests cuda-sim ops.${suite} *${suite}*cuda*-${too_large})
endforeach()
# Low precision on both generations: Hopper multiplies codes of blockwise, Blackwell those of mxfp8 and nvfp4, and each
# emulates the others.
foreach(capability 90 100)
  set(generation MCPP_SIMULATOR_COMPUTE_CAPABILITY=${capability})
  mcpp_simulate(tensor_tests "${fast}" ops.low_precision.${capability} *BlockScaling*cuda*:*Nvfp4*cuda*:*Fp8*cuda*:*RowCodes*cuda*
                ${generation})
  mcpp_simulate(megatron_cpp_tests cuda-sim recipe_parity.${capability} *Fp8DeviceParityTest*-*llama_even*
                ${generation} MCPP_TEST_MAX_STEPS=4 OMP_NUM_THREADS=1)
endforeach()
mcpp_simulate(tensor_tests "${fast}" ops.fast
  *AsyncCopy*cuda*:*TransferTest*cuda*:*StepOps*cuda*:*OptimizerOps*cuda*:*Fp8*cuda*:*RopeOps*cuda*:*ExpertChoices*cuda*:*PaddedOrder*cuda*)
mcpp_simulate(model_tests "${fast}" padded_experts *UnpaddedExperts*cuda*:*PaddedExperts*cuda*)
# Communicators on one to four GPUs under all policies, and models.
foreach(policy late eager reverse random pct)
  foreach(seed 0 1 2)
    set(labels cuda-sim)
    if(seed EQUAL 0)
      set(labels ${fast})
    endif()
    mcpp_simulate(comm_tests "${labels}" comm.${policy}.${seed} *nccl_cuda*
                  MCPP_SIMULATOR_POLICY=${policy} MCPP_SIMULATOR_SEED=${seed} MCPP_SIMULATOR_RANK_ORDER=1)
  endforeach()
  mcpp_simulate(megatron_cpp_tests cuda-sim nccl_layouts.${policy} *NcclLayouts*cuda*
                MCPP_SIMULATOR_POLICY=${policy} MCPP_SIMULATOR_SEED=1)
endforeach()
mcpp_simulate(megatron_cpp_tests "${fast}" nccl_layouts.fast *NcclLayouts*cuda* MCPP_SIMULATOR_POLICY=random)
mcpp_simulate(megatron_cpp_tests cuda-sim nccl_layouts.late_loading *NcclLayouts*cuda* MCPP_SIMULATOR_LATE_LOADING=1)
mcpp_simulate(comm_tests cuda-sim comm.staged *staged_cuda*)
mcpp_simulate(comm_tests "${fast}" comm.any_order *nccl_cuda* MCPP_SIMULATOR_POLICY=random)  # as NCCL adds
# Recorded passes.
foreach(policy late random pct)
  mcpp_simulate(megatron_cpp_tests cuda-sim recorded_passes.${policy} *RecordedPassesTest*:*RecordedStepsTest*
                MCPP_SIMULATOR_POLICY=${policy} MCPP_SIMULATOR_RANK_ORDER=1 OMP_NUM_THREADS=1)
endforeach()
mcpp_simulate(megatron_cpp_tests "${fast}" recorded_passes.fast *RecordedPassesTest*/gpt2_dropout_cuda:*RecordedPassesTest*/dp2_zero1_cuda:*RecordedPassesTest*/experts_bf16_cuda
              MCPP_SIMULATOR_POLICY=random MCPP_SIMULATOR_LATE_LOADING=1 MCPP_SIMULATOR_RANK_ORDER=1)
mcpp_simulate(megatron_cpp_tests cuda-sim golden *GoldenModelTest.Logits*cuda*)
mcpp_simulate(megatron_cpp_tests cuda-sim golden_training *GoldenModelTest.Twelve*cuda*)
# Layouts of two to eight ranks over NCCL, compared as on CPUs (tests/megatron_cpp/layouts): random compositions in
# which every schedule, kind of context and expert parallelism, ZeRO stage, tier of offload, precision and size of a
# group occurs at least twice, under all policies with several seeds.
set(layout_settings MCPP_TEST_DEVICE=cuda MCPP_TEST_MAX_STEPS=2 RANDOM_LAYOUTS=160 MCPP_SIMULATOR_RANK_ORDER=1
                    OMP_NUM_THREADS=1 MCPP_SIMULATOR_PATIENCE=600)
function(mcpp_seeds variable test)
  list(TRANSFORM ARGN PREPEND "*${test}*/seed_")
  list(JOIN ARGN ":" filter)
  set(${variable} "${filter}" PARENT_SCOPE)
endfunction()
mcpp_seeds(compositions RandomLayoutsTest 4 12 17 19 24 29 32 35 59 63 86 92 95 106 130 131 135 138 139 157 167 173 184
           191 203 206 207 220 240)
mcpp_seeds(fast_compositions RandomLayoutsTest 12 17 32 59 63 92 106 130)
mcpp_simulate(megatron_cpp_tests "${fast}" layouts.fast "${fast_compositions}" ${layout_settings}
              MCPP_SIMULATOR_POLICY=random)
# Seeds that draw CUDA graphs, with the steps that record and launch them.
mcpp_seeds(graph_compositions RandomLayoutsTest 19 138)
set(graph_settings ${layout_settings})
list(REMOVE_ITEM graph_settings MCPP_TEST_MAX_STEPS=2)
mcpp_simulate(megatron_cpp_tests cuda-sim layouts.graphs "${graph_compositions}" ${graph_settings}
              MCPP_SIMULATOR_POLICY=random)
list(REMOVE_ITEM graph_settings RANDOM_LAYOUTS=160)
mcpp_simulate(megatron_cpp_tests cuda-sim layouts.graphs_with_experts *RandomLayoutsTest*/seed_2517 ${graph_settings}
              RANDOM_LAYOUTS_FROM=2517 RANDOM_LAYOUTS=1 MCPP_SIMULATOR_POLICY=random)
mcpp_seeds(resumed RandomResumeTest 4 12 24 32)
set(fp8_cases *Fp8SameSummationOrderTest*/llama_pp2_zb_v *Fp8SameSummationOrderTest*/llama_tp2_sp_pp2_zb_h1
              *Fp8SameSummationOrderTest*/llama_dp2_zero3 *Fp8LayersTest*
              *DelayedScalingSameSummationOrderTest*/gpt2_pp2_zb_h1 *DelayedScalingSameSummationOrderTest*/gpt2_dp2_zero3
              Layouts/Fp8ParamGatherTest.IsBitwiseIdenticalWithScalesOfTensors/dp2_zero1
              Layouts/Fp8ParamGatherTest.IsBitwiseIdenticalWithScalesOfTensors/tp2_sp_dp2_zero3)
list(JOIN fp8_cases ":" fp8_cases)
set(recipe_cases *BlocksSameSummationOrderTest*/mxfp8_llama_pp2_zb_v_recompute
                 *BlocksSameSummationOrderTest*/mxfp8_experts_dp2_zero3
                 *BlocksSameSummationOrderTest*/nvfp4_gpt2_tp2_sp_pp2_zb_h1
                 *BlocksSameSummationOrderTest*/nvfp4_latent_recompute_selective
                 *BlocksOtherSummationOrderTest*/nvfp4_llama_cp2 BlockwiseSameSummationOrderTest.*
                 LowPrecisionTablesTest.*)
list(JOIN recipe_cases ":" recipe_cases)
foreach(policy late eager reverse random pct)
  foreach(seed 1 2)
    mcpp_simulate(megatron_cpp_tests cuda-sim layouts.${policy}.${seed} "${compositions}" ${layout_settings}
                  MCPP_SIMULATOR_POLICY=${policy} MCPP_SIMULATOR_SEED=${seed})
  endforeach()
  set(settings ${layout_settings} MCPP_SIMULATOR_POLICY=${policy} MCPP_SIMULATOR_SEED=3)
  mcpp_simulate(megatron_cpp_tests cuda-sim resume.${policy} "${resumed}" ${settings})
  mcpp_simulate(megatron_cpp_tests cuda-sim fp8_layouts.${policy} "${fp8_cases}" ${settings})
  foreach(capability 90 100)
    mcpp_simulate(megatron_cpp_tests cuda-sim recipe_layouts.${policy}.${capability} "${recipe_cases}" ${settings}
                  MCPP_SIMULATOR_COMPUTE_CAPABILITY=${capability})
  endforeach()
  mcpp_simulate(megatron_cpp_tests cuda-sim inference.${policy} EvaluationLayoutsTest.*:NextLogitsTest.* ${settings})
  list(REMOVE_ITEM settings MCPP_TEST_MAX_STEPS=2)
  mcpp_simulate(megatron_cpp_tests cuda-sim async_save.${policy} AsyncSaveLayoutsTest.SavesStateOfItsIteration ${settings})
endforeach()
mcpp_simulate(megatron_cpp_tests cuda-sim device_parity *DeviceParityTest*-*llama_even* MCPP_TEST_MAX_STEPS=2
              MCPP_SIMULATOR_POLICY=random OMP_NUM_THREADS=1)

# The program: trainings, kills, evaluation and generation, and the checks for a machine with a GPU.
add_test(NAME cuda_sim.program COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cuda_simulator/program.sh $<TARGET_FILE:megatron_cpp>)
add_test(NAME cuda_sim.gpu_check COMMAND ${CMAKE_SOURCE_DIR}/scripts/gpu_check.sh --simulated --seconds 1500
                                         --output ${CMAKE_BINARY_DIR}/gpu_check ${CMAKE_BINARY_DIR})
set_tests_properties(cuda_sim.program cuda_sim.gpu_check PROPERTIES LABELS cuda-sim TIMEOUT 1800 SKIP_RETURN_CODE 77)
add_test(NAME cuda_sim.faults COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cuda_simulator/faults.sh $<TARGET_FILE:megatron_cpp>)
set_tests_properties(cuda_sim.faults PROPERTIES LABELS "${fast}" TIMEOUT 600)
