target_link_options(fault_test_thread_creation PRIVATE -Wl,--wrap=pthread_create)
