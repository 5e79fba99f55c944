"""`qnnbridge profile`: where the time goes, from loading the model to each operator on the NPU."""
