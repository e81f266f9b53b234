"""One thread for matrix work: two agents and two engines share the cores already."""

from kvxfer.demo.threads import use_one_matrix_thread

use_one_matrix_thread()
