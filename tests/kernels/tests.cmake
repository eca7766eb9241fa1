# The AMX kernels with tiles in plain C, for machines that have none.
if("amxbf16" IN_LIST dsr_row_units)
    add_library(row_kernels_emulated OBJECT ${dsr_row_sources})
    target_link_libraries(row_kernels_emulated PRIVATE dsrows_build)
    target_compile_definitions(row_kernels_emulated PRIVATE
        DSRI_ISA=avx512 DSRI_ROW_UNIT=amxemulated DSRI_TILES_EMULATED=1)
    target_compile_options(row_kernels_emulated PRIVATE ${dsr_flags_avx512})
    target_link_libraries(kernels_test_row_tiles PRIVATE row_kernels_emulated)

    add_library(exact_kernels_emulated OBJECT ${dsr_exact_sources})
    target_link_libraries(exact_kernels_emulated PRIVATE dsrows_build)
    target_compile_definitions(exact_kernels_emulated PRIVATE
        DSRI_ISA=avx512 DSRI_EXACT_UNIT=amxemulated DSRI_TILES_EMULATED=1)
    target_compile_options(exact_kernels_emulated PRIVATE ${dsr_flags_avx512})
    target_link_libraries(kernels_test_exact_indexer PRIVATE exact_kernels_emulated)
endif()
