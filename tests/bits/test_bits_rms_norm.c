#include "bit_suite.h"

int main(void)
{
    return bit_suite_run("rms-norm", BIT_TIER_QUICK);
}
