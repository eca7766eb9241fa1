/* Version of the running library. */
#include <dsrows/version.h>

const char *dsr_version_string(void)
{
    return DSR_VERSION_STRING;
}

uint32_t dsr_bits_version(void)
{
    return DSR_BITS_VERSION;
}
