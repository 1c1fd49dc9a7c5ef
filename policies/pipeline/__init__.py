"""Pipeline schedules as pure data: what each rank runs, and in which order.

    registry            generate("1f1b", ranks=4, micro_batches=8)    a `Schedule`: one program per rank
    pipeline_schedule   Schedule, Action, with_recompute              the elements of programs
    validate            validate(schedule)                            raises if it is not a valid schedule
    evaluate            evaluate(schedule, StageTimes(...))           exact start and end of every slot
                        peak_activations(schedule)                    activations alive on each rank
                        closed_form("1f1b", ...)                      the textbook formula
    custom              picture(schedule)                             rank × time, in text
                        to_csv(schedule), parse_csv(text)             torch.distributed.pipelining's format

Nothing here has a clock or a device, and nothing is simulated: the simulator issues the programs in
order and must arrive at the same times as `evaluate`.
"""
