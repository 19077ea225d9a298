"""What the fit costs, measured: each benchmark prints ratios against a floor or a rival measured in the same run."""
