// The linter, in a module of its own: its dependencies disagree with everything else's.
module weft.dev/weft/tools/lint

go 1.26.0
