#include "bit_suite.h"

int main(void)
{
    return bit_suite_run("gather", BIT_TIER_FULL);
}
