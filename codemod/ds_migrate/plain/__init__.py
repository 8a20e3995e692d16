"""The conversion of plain PyTorch training loops, which never had anything to do with Determined.

The way of a project, each stage with its package and the function to begin at:

- ``project_loops``: ``convert_loops()`` goes through the projects of a run, and through the programs of each.
- ``programs``: ``find_programs()`` finds the files that belong together.
- ``conversion``: ``convert_program()`` takes one program through the stages below.
- ``dataflow``: ``Flow`` follows which values the variables of these files may hold.
- ``recognition``: ``find_operations()`` and ``find_sites()`` find what trains, ``find_refusals()`` what forbids it.
- ``parts``: ``find_parts()`` divides the program by its optimizers; ``PartEditing`` takes each part through the rest.
- ``decisions``: ``decide()`` returns a ``ProgramPlan``: the engines, and how each operation is converted.
- ``edits`` and ``ranks``: ``Editor`` writes the engines, and what several ranks need beside them.
- ``parts``: ``part_results()`` returns files and findings.
"""
