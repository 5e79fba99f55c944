"""`qnnbridge doctor`: what is wrong with this machine, and how to mend it.

A `machine.Machine` is asked by the `survey`, which gives `facts.Facts`; the `checks` judge these and give
`findings.Finding` of the `catalogue`; `diagnose` puts them in order and says the verdict. A snapshot is the facts
in a file. Only the survey touches a computer, so everything after it works on another one's snapshot, too."""
