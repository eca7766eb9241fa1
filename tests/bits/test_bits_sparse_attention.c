#include "bit_suite.h"

int main(void)
{
    return bit_suite_run("sparse-attention", BIT_TIER_QUICK);
}
