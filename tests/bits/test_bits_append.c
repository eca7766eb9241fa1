#include "bit_suite.h"

int main(void)
{
    return bit_suite_run("append", BIT_TIER_QUICK);
}
