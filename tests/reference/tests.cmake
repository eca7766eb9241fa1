# The exhaustive proofs of exp and sincos: a sample in every run, every float under the label full.
foreach(name exp_exhaustive sincos_exhaustive)
    add_executable(reference_${name} ${CMAKE_CURRENT_LIST_DIR}/${name}.c)
    target_link_libraries(reference_${name} PRIVATE dsrows_test)
    set_target_properties(reference_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    dsr_add_test_case(reference.${name} quick reference reference_${name})
    dsr_add_test_case(reference.${name}_full full reference reference_${name} --full)
endforeach()
