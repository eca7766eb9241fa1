# The same programs over every level of the machine.
foreach(property row_properties attention_properties indexer_properties cache_properties)
    dsr_add_test_case(properties.${property}_full full properties properties_test_${property})
    set_tests_properties(properties.${property}_full PROPERTIES ENVIRONMENT DSR_TEST_TIER=full)
endforeach()
