# Builds the fuzzers, fuzz_<target> for each target of tests/fuzz/targets.h, from the sources that read files and
# settings, without kernels. Add sources that the linker misses to this list. Needs clang for -fsanitize=fuzzer.
# scripts/fuzz.sh runs the fuzzers.
pkg_check_modules(HDF5 REQUIRED IMPORTED_TARGET hdf5-serial)
pkg_check_modules(SENTENCEPIECE REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(ICU REQUIRED IMPORTED_TARGET icu-uc)
pkg_check_modules(TOMLPLUSPLUS REQUIRED IMPORTED_TARGET tomlplusplus)
find_package(nlohmann_json 3 REQUIRED)
find_package(ZLIB REQUIRED)
find_package(CURL REQUIRED)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(LIBURING REQUIRED IMPORTED_TARGET liburing)

set(fuzz_sanitizers address,undefined)
file(GLOB fuzz_sources CONFIGURE_DEPENDS base/*.cpp base/program/*.cpp base/object_store/*.cpp megatron_cpp/config/*.cpp
  tests/fuzz/*_targets.cpp)
file(GLOB_RECURSE library_sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR} checkpoint/*.cpp data/tokenizer/bpe/*.cpp data/jinja/*.cpp)
add_library(mcpp_fuzz STATIC ${fuzz_sources} ${library_sources} tests/fuzz/targets.cpp tests/fuzz/no_kernels.cpp
  tensor/device.cpp tensor/gemm_algo_cache.cpp tensor/memory_arena.cpp tensor/out_of_memory.cpp tensor/tensor.cpp
  base/io/file_system.cpp base/io/http_client.cpp base/io/scratch_file.cpp base/io/transfer_queue.cpp nn/offload/stored_array.cpp
  tensor/host/pinned_buffer_pool.cpp tensor/cpu/shared_arena.cpp tensor/ops/zeros.cpp nn/tensor_region.cpp comm/self.cpp
  parallel/layout_rules.cpp parallel/pp/schedule.cpp parallel/pp/schedule_kind.cpp parallel/stages.cpp
  model/config/block_spec.cpp model/config/config.cpp model/config/moe.cpp model/config/mup.cpp model/config/recurrent.cpp model/config/rope_scaling.cpp optimizer/config.cpp
  data/dataset/blend.cpp data/tokenizer/sentencepiece_normalizer.cpp data/config.cpp data/dataset/dataset_info.cpp data/preprocess/document_reader.cpp data/preprocess/input_format.cpp data/dataset/index/index_cache.cpp
  data/dataset/index/indexed_dataset.cpp data/dataset/index/token_file.cpp data/tokenizer/proto_reader.cpp
  data/tokenizer/sentencepiece_coder.cpp data/tokenizer/sentencepiece_model.cpp data/tokenizer/byte_trie.cpp data/tokenizer/unigram_model.cpp data/tokenizer/bpe_coder.cpp data/tokenizer/tokenizer_file.cpp data/preprocess/input_stream.cpp data/preprocess/text_source.cpp data/tokenizer/tokenizer.cpp
  comm/object_collectives.cpp
  megatron_cpp/huggingface/huggingface_config.cpp
  megatron_cpp/huggingface/config_keys.cpp megatron_cpp/huggingface/deepseek_keys.cpp megatron_cpp/huggingface/families.cpp megatron_cpp/huggingface/linear_attention_keys.cpp megatron_cpp/huggingface/llama_variants.cpp megatron_cpp/huggingface/nemotron_keys.cpp megatron_cpp/huggingface/prediction_keys.cpp megatron_cpp/huggingface/quantization.cpp megatron_cpp/huggingface/quantized_weights.cpp
  megatron_cpp/config/sections/conflicts.cpp)
target_compile_options(mcpp_fuzz PUBLIC -fsanitize=${fuzz_sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
target_compile_options(mcpp_fuzz PRIVATE -fsanitize=fuzzer-no-link)
target_compile_definitions(mcpp_fuzz PUBLIC _GLIBCXX_ASSERTIONS)
target_link_libraries(mcpp_fuzz PUBLIC mcpp_options PkgConfig::HDF5 PkgConfig::SENTENCEPIECE PkgConfig::PCRE2 PkgConfig::ICU
                      PkgConfig::TOMLPLUSPLUS
                      nlohmann_json::nlohmann_json CURL::libcurl ZLIB::ZLIB PkgConfig::ZSTD PkgConfig::LIBURING)

file(STRINGS tests/fuzz/targets.h declarations REGEX "^void [a-z_]+\\(std::string_view input\\);")
foreach(declaration ${declarations})
  string(REGEX REPLACE "^void ([a-z_]+).*" "\\1" target ${declaration})
  add_executable(fuzz_${target} tests/fuzz/libfuzzer.cpp)
  target_compile_definitions(fuzz_${target} PRIVATE "MCPP_FUZZ_TARGET=\"${target}\"")
  target_link_libraries(fuzz_${target} PRIVATE mcpp_fuzz)
  target_link_options(fuzz_${target} PRIVATE -fsanitize=fuzzer,${fuzz_sanitizers})
endforeach()
