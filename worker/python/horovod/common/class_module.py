"""The __module__ of the classes that the package makes of users' classes."""


class ClassModule(str):
    """A class with this as its __module__ names its base's module, its objects another one.

    By the first the class is saved and found again. The second is what programs look at to
    know a distributed optimizer: optimizer.__module__.startswith("horovod").
    """

    def __new__(cls, of_class, of_objects):
        made = super().__new__(cls, of_class)
        made.of_objects = of_objects
        return made

    def __get__(self, obj, owner=None):
        return str(self) if obj is None else self.of_objects

    def __reduce__(self):
        return str, (str(self),)
