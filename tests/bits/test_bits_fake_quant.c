#include "bit_suite.h"

int main(void)
{
    return bit_suite_run("fake-quant", BIT_TIER_QUICK);
}
