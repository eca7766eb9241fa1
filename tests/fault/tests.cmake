target_link_options(fault_thread_creation PRIVATE -Wl,--wrap=pthread_create)
