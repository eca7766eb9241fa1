# A driver library that runs nothing, for the CUDA back end's tests on machines without a device.
add_library(fake_cuda SHARED ${PROJECT_SOURCE_DIR}/tests/cuda/fake_cuda.c ${PROJECT_SOURCE_DIR}/tests/cuda/emulator/none.c)
set_target_properties(fake_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
target_include_directories(fake_cuda PRIVATE ${PROJECT_SOURCE_DIR}/tests/cuda/emulator)
target_link_libraries(fake_cuda PRIVATE dsrows_flags)
target_compile_definitions(cuda_test_fake_driver PRIVATE FAKE_CUDA_LIBRARY="$<TARGET_FILE:fake_cuda>")
add_dependencies(cuda_test_fake_driver fake_cuda)
# A compiler library that compiles nothing, for callers' CUDA C.
add_library(fake_nvrtc SHARED ${PROJECT_SOURCE_DIR}/tests/cuda/fake_nvrtc.c)
set_target_properties(fake_nvrtc PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
target_link_libraries(fake_nvrtc PRIVATE dsrows_flags)
target_compile_definitions(cuda_test_device_kernels PRIVATE
    FAKE_CUDA_LIBRARY="$<TARGET_FILE:fake_cuda>" FAKE_NVRTC_LIBRARY="$<TARGET_FILE:fake_nvrtc>")
add_dependencies(cuda_test_device_kernels fake_cuda fake_nvrtc)
# The kernels themselves on the emulator, threads in order and shuffled.
if(TARGET emulated_cuda)
    foreach(seed 0 1)
        set(test_name cuda.emulated_seed_${seed})
        dsr_add_test_case(${test_name} quick cuda dsrows_gpu_check short sparse-attention flash-attention indexer
            compressor gather copy rope fake-quant rms-norm projection)
        set_tests_properties(${test_name} PROPERTIES
            ENVIRONMENT "DSR_CUDA_DRIVER=$<TARGET_FILE:emulated_cuda>;DSR_EMULATOR_SEED=${seed}")
    endforeach()
endif()
